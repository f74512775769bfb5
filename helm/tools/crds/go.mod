// The version of the Prometheus operator whose CRDs validate the chart's objects. Nothing is built
// from it. To change it, edit the version, then run go mod download.
module streamdedup/helm/tools/crds

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
