/* Orders the results of the search: settings and guides, then internals, then decisions.
   Sphinx calls score for each result, and needs all other numbers; they are its defaults. */
"use strict";

const RANKS = { "adr/": -1000, "internals/": -500, settings: 20 };

// Sphinx's script reads the global name.
var Scorer = {
  score: ([name, , , , score]) =>
    Object.entries(RANKS).reduce(
      (sum, [start, rank]) => (name.startsWith(start) ? sum + rank : sum),
      score,
    ),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
