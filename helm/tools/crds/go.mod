// The version of the Prometheus operator whose definitions the chart's objects must fit. Nothing is
// built from it: to change it, write the version here, then go mod download.
module streamdedup/helm/tools/crds

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
