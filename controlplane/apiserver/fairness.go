// Priority and fairness: whose requests wait behind whose.

package apiserver

import (
	"context"
	"errors"
	"slices"
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
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/utils/ptr"
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
// by PriorityLevelConfigurations: Kubernetes' own, which ensureFlow makes, and those
// of nodes that join.
//
// The requests of this process, as those of all administrators, are exempt: a
// request that others wait for must not wait for others.
func (s *Server) share(c *genericapiserver.Config, client kubernetes.Interface, shared informers.SharedInformerFactory) {
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = s.cfg.MaxRequestsInFlight, s.cfg.MaxMutatingRequestsInFlight
	c.FlowControl = flowcontrol.New(shared, client.FlowcontrolV1(), c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight)
}

// joinLevel has the requests of nodes that join, those with a bootstrap token, in a level
// of their own with two shares, five requests at a time by default. A server that is slow because
// it has too much to do makes fewer nodes join, and keeps up with those that it has. It takes
// turns between tokens.
var (
	joinLevel = flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "node-bootstrap", Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To[int32](2),
				LendablePercent:          ptr.To[int32](0),
				BorrowingLimitPercent:    ptr.To[int32](0),
				LimitResponse: flowcontrolv1.LimitResponse{
					Type:    flowcontrolv1.LimitResponseTypeQueue,
					Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 16, HandSize: 4, QueueLengthLimit: 50},
				},
			},
		},
	}
	joinSchema = flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "system-bootstrappers", Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: joinLevel.Name},
			MatchingPrecedence:         450, // between those of nodes' heartbeats and of their other requests
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{
					Kind:  flowcontrolv1.SubjectKindGroup,
					Group: &flowcontrolv1.GroupSubject{Name: bootstrapapi.BootstrapDefaultGroup},
				}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs:        []string{flowcontrolv1.VerbAll},
					APIGroups:    []string{flowcontrolv1.APIGroupAll},
					Resources:    []string{flowcontrolv1.ResourceAll},
					ClusterScope: true,
					Namespaces:   []string{flowcontrolv1.NamespaceEvery},
				}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{
					Verbs:           []string{flowcontrolv1.VerbAll},
					NonResourceURLs: []string{flowcontrolv1.NonResourceAll},
				}},
			}},
		},
	}
)

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
	for i, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations, append(slices.Clip(bootstrap.SuggestedPriorityLevelConfigurations), &joinLevel)} {
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
	for i, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, append(slices.Clip(bootstrap.SuggestedFlowSchemas), &joinSchema)} {
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
