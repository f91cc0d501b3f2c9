// Package policystatus checks the expressions of ValidatingAdmissionPolicies against the
// types of the objects that they are about, and writes what it finds into their status.
//
// Each generation of a policy is checked once. A warning keeps no policy from being in
// force. The types are read from the API server's OpenAPI documents, which that makes
// when they are asked for: without a policy nothing asks.
package policystatus

import (
	"context"
	"log/slog"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A Controller is Kubernetes' validatingadmissionpolicy-status-controller.
type Controller struct {
	client   kubernetes.Interface
	policies admissionlisters.ValidatingAdmissionPolicyLister
	inf      cache.SharedIndexInformer
	types    validating.TypeChecker
	log      *slog.Logger
}

// Config configures a Controller: there is nothing to set.
type Config struct{}

// New returns a controller that watches through d.Informers.
func New(d loop.Deps, _ Config) (*Controller, error) {
	policies, api := d.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies(), d.Client.Discovery()
	c := &Controller{client: d.Client, policies: policies.Lister(), inf: policies.Informer(), types: validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: api},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api)),
	}}
	c.log = loop.Logger(d.Log, c.Name())
	return c, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "validatingadmissionpolicy-status-controller" }

// Run checks policies until ctx is done, one at a time: a document of types has megabytes.
// The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: 1, Log: c.log})
	stop, err := loop.WatchIf(c.inf, func(_, is *admissionv1.ValidatingAdmissionPolicy) bool { return unchecked(is) }, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func unchecked(p *admissionv1.ValidatingAdmissionPolicy) bool {
	return p.Status.ObservedGeneration < p.Generation
}

func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	p, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) || err == nil && !unchecked(p) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	p = p.DeepCopy()
	p.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: c.types.Check(p)}
	p.Status.ObservedGeneration = p.Generation
	_, err = c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return 0, loop.StatusError("policy "+name, err)
}
