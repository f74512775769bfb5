// The versions of the Prometheus operator and of KEDA whose CRDs validate the chart's objects. Nothing
// is built from them. To change one, edit the version, then run go mod download MODULE.
module streamdedup/helm/tools/crds

go 1.26.0

require (
	github.com/kedacore/keda/v2 v2.21.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
