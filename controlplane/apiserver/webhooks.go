// Webhooks and policies: what the users of a cluster have set up to decide about
// requests, and how it is reached.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/answers"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
)

// resolveTimeout bounds the look-up of a webhook's service.
const resolveTimeout = 5 * time.Second

// decidedByOthers are the plugins that ask webhooks and policies, in Kubernetes' order.
// Those that are made later are readied by initialize.
func decidedByOthers(shared informers.SharedInformerFactory, initialize func(admission.Interface) error) []plugin {
	return []plugin{
		{"MutatingAdmissionWebhook", func() (admission.Interface, error) {
			return changing{newDormant(shared.Admissionregistration().V1().MutatingWebhookConfigurations().Informer(), func() (admission.Interface, error) {
				p, err := mutatingwebhook.NewMutatingWebhook(nil)
				if err != nil {
					return nil, fmt.Errorf("mutating webhooks: %w", err)
				}
				return p, initialize(p)
			})}, nil
		}},
		{"ValidatingAdmissionPolicy", func() (admission.Interface, error) {
			p, err := validating.NewPlugin(nil)
			if err != nil {
				return nil, fmt.Errorf("admission policies: %w", err)
			}
			return p, nil
		}},
		{"ValidatingAdmissionWebhook", func() (admission.Interface, error) {
			return refusing{newDormant(shared.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(), func() (admission.Interface, error) {
				p, err := validatingwebhook.NewValidatingAdmissionWebhook(nil)
				if err != nil {
					return nil, fmt.Errorf("validating webhooks: %w", err)
				}
				return p, initialize(p)
			})}, nil
		}},
	}
}

// notStored are questions about users and their rights. Nobody else decides about them,
// or a cluster could be locked out of its own answers.
func notStored() []schema.GroupResource {
	var all []schema.GroupResource
	for _, name := range []string{"selfsubjectreviews", "tokenreviews"} {
		all = append(all, authenticationv1.SchemeGroupVersion.WithResource(name).GroupResource())
	}
	for _, name := range []string{"localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"} {
		all = append(all, authorizationv1.SchemeGroupVersion.WithResource(name).GroupResource())
	}
	return all
}

// toWebhooks has services dialed by Config.ToServices, and URLs by Config.ToURLs, and bounds
// what they answer.
func (s *Server) toWebhooks(otherwise webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			c, err := otherwise.ClientConfigFor(hostPort)
			if err != nil {
				return nil, err
			}
			c.Wrap(answers.Bound)
			if s.cfg.ToURLs != nil {
				c.Dial = s.cfg.ToURLs
			}
			return c, nil
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			c, err := otherwise.ClientConfigForService(name, namespace, port)
			if err != nil {
				return nil, err
			}
			c.Wrap(answers.Bound)
			c.Dial = s.toService
			return c, nil
		},
	}
}

func (s *Server) toService(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.cfg.ToServices == nil {
		return nil, errors.New("this server has no way to services: give the webhook a url")
	}
	return s.cfg.ToServices(ctx, network, addr)
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (s *Server) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(request.WithNamespace(context.Background(), namespace), resolveTimeout)
	defer cancel()
	svc, err := s.objects.Service(ctx, name)
	if err != nil {
		return nil, err
	}
	slices, err := s.objects.EndpointSlices(ctx, name)
	if err != nil {
		return nil, err
	}
	host, err := kubelet.Endpoint(svc, slices, port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: host}, nil
}
