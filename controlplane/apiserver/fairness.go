// Priority and fairness: whose requests wait behind whose.

package apiserver

import (
	"context"
	"errors"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Limits of the requests that are answered at a time, as kube-apiserver's.
const (
	DefaultMaxRequestsInFlight         = 400
	DefaultMaxMutatingRequestsInFlight = 200
)

// share gives each priority level its part of the requests that are answered at
// a time. Heartbeats of nodes, the election of leaders and the controllers have
// a level each, so none of them waits for what others ask for, however slow the
// store is. What a request belongs to is said by FlowSchemas, how much that gets
// by PriorityLevelConfigurations: Kubernetes' own, which ensureFlow makes.
//
// The requests of this process, as those of all administrators, are exempt: a
// request that others wait for must not wait for others.
func (s *Server) share(c *genericapiserver.Config, client kubernetes.Interface, shared informers.SharedInformerFactory) {
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = s.cfg.MaxRequestsInFlight, s.cfg.MaxMutatingRequestsInFlight
	c.FlowControl = flowcontrol.New(shared, client.FlowcontrolV1(), c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight)
}

// flowChanges has word left in changed whenever an object of flow control is.
func flowChanges(shared informers.SharedInformerFactory, changed chan<- struct{}) error {
	note := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handlers := cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, obj any) {
			// The status is written by the library, and of no interest.
			if spec(old) != spec(obj) {
				note()
			}
		},
		DeleteFunc: func(any) { note() },
	}
	flow := shared.Flowcontrol().V1()
	_, err := flow.FlowSchemas().Informer().AddEventHandler(handlers)
	_, err2 := flow.PriorityLevelConfigurations().Informer().AddEventHandler(handlers)
	return errors.Join(err, err2)
}

// spec tells states of one object apart by all that its users can set.
func spec(obj any) string {
	m, ok := obj.(metav1.Object)
	if !ok {
		return ""
	}
	return strconv.FormatInt(m.GetGeneration(), 10) + "/" + m.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]
}

// ensureFlow makes what is missing of the objects of flow control that every
// cluster has, and sets right those that are to follow Kubernetes' own.
func ensureFlow(ctx context.Context, client kubernetes.Interface) error {
	levels, schemas := client.FlowcontrolV1().PriorityLevelConfigurations(), client.FlowcontrolV1().FlowSchemas()
	var errs []error
	for i, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations} {
		for _, level := range list {
			errs = append(errs, present(ensure(ctx, levels, level.DeepCopy(), func(have *flowcontrolv1.PriorityLevelConfiguration) bool {
				want := level.Spec.DeepCopy()
				if level.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && have.Spec.Type == want.Type && have.Spec.Exempt != nil {
					want.Exempt = have.Spec.Exempt // what it lends is the users' to set
				}
				return follow(have, &have.Spec, *want, i == 0)
			})))
		}
	}
	for i, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
		for _, schema := range list {
			errs = append(errs, present(ensure(ctx, schemas, schema.DeepCopy(), func(have *flowcontrolv1.FlowSchema) bool {
				return follow(have, &have.Spec, schema.Spec, i == 0)
			})))
		}
	}
	return errors.Join(errs...)
}

// present forgives that an object was deleted between two requests: word of that
// comes, and it is made again.
func present(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// follow sets spec to want, unless a user has taken the object over, and reports
// whether nothing had to be changed. An annotation says whose an object is; on
// one without, the generation tells whether anybody has changed it. The mandatory
// ones are nobody's.
func follow[T any](obj metav1.Object, spec *T, want T, mandatory bool) bool {
	notes := obj.GetAnnotations()
	said := notes[flowcontrolv1.AutoUpdateAnnotationKey]
	ours, err := strconv.ParseBool(said)
	if err != nil {
		ours = obj.GetGeneration() == 1
	}
	ours = ours || mandatory
	unchanged := true
	if mark := strconv.FormatBool(ours); err != nil || mandatory && said != mark {
		if notes == nil {
			notes = make(map[string]string, 1)
		}
		notes[flowcontrolv1.AutoUpdateAnnotationKey] = mark
		obj.SetAnnotations(notes)
		unchanged = false
	}
	if ours && !same(spec, want) {
		unchanged = false
	}
	return unchanged
}
