// Package openapi holds the OpenAPI definitions of every type the API server
// serves, generated from the types' own source. Nothing in it is written by hand
// but this comment; go generate reproduces it byte for byte.
package openapi

//go:generate go tool openapi-gen --output-dir . --output-pkg github.com/hawser-project/hawser/controlplane/apiserver/openapi --output-file zz_generated.openapi.go --report-filename /dev/null --go-header-file /dev/null k8s.io/api/admissionregistration/v1 k8s.io/api/apps/v1 k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/api/autoscaling/v1 k8s.io/api/batch/v1 k8s.io/api/certificates/v1 k8s.io/api/coordination/v1 k8s.io/api/core/v1 k8s.io/api/discovery/v1 k8s.io/api/events/v1 k8s.io/api/flowcontrol/v1 k8s.io/api/networking/v1 k8s.io/api/node/v1 k8s.io/api/policy/v1 k8s.io/api/rbac/v1 k8s.io/api/scheduling/v1 k8s.io/api/scheduling/v1alpha3 k8s.io/api/storage/v1 k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/util/intstr k8s.io/metrics/pkg/apis/metrics/v1beta1
