// Pod Security Standards by the labels of namespaces.

package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurity "k8s.io/pod-security-admission/admission"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

// podSecurityAnnotation is what the names of the plugin's audit annotations begin with.
const podSecurityAnnotation = "pod-security.kubernetes.io/"

// PodSecurity refuses pods that the standard of their namespace does not allow, and warns
// of them, as the namespace's labels pod-security.kubernetes.io/… say. A namespace
// without labels allows everything.
//
// Namespace returns a namespace as it is now: a label that was just put on it holds for
// the next request.
func PodSecurity(namespace func(ctx context.Context, name string) (*corev1.Namespace, error)) (admission.Interface, error) {
	everything, err := load.LoadFromFile("")
	if err != nil {
		return nil, fmt.Errorf("pod security: %w", err)
	}
	version := api.MajorMinorVersion(1, 37)
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), &version)
	if err != nil {
		return nil, fmt.Errorf("pod security: %w", err)
	}
	return &podSecurity{
		Handler:   admission.NewHandler(admission.Create, admission.Update),
		namespace: namespace,
		rules:     podsecurity.Admission{Configuration: everything, Evaluator: checks, Metrics: podSecurityMetrics()},
	}, nil
}

// podSecurityMetrics are the process's.
var podSecurityMetrics = sync.OnceValue(func() metrics.Recorder {
	r := metrics.NewPrometheusRecorder(api.MajorMinorVersion(1, 37))
	r.MustRegister(legacyregistry.MustRegister)
	return r
})

type podSecurity struct {
	*admission.Handler
	rules     podsecurity.Admission
	client    kubernetes.Interface
	namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
}

// SetExternalKubeClientSet is called by the server when it makes the chain.
func (p *podSecurity) SetExternalKubeClientSet(c kubernetes.Interface) { p.client = c }

func (p *podSecurity) ValidateInitialization() error {
	if p.client == nil {
		return errors.New("pod security: no client")
	}
	p.rules.NamespaceGetter, p.rules.PodLister = p, p
	if err := p.rules.CompleteConfiguration(); err != nil {
		return fmt.Errorf("pod security: %w", err)
	}
	return p.rules.ValidateConfiguration()
}

// GetNamespace implements podsecurity.NamespaceGetter.
func (p *podSecurity) GetNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	return p.namespace(ctx, name)
}

// ListPods implements podsecurity.PodLister. It is asked when a namespace's standard
// becomes stricter, which is not worth a cache of all pods. The API server's own may lag
// behind a pod that was just made.
func (p *podSecurity) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	all, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*corev1.Pod, len(all.Items))
	for i := range all.Items {
		out[i] = &all.Items[i]
	}
	return out, nil
}

// Validate implements admission.ValidationInterface.
func (p *podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	gr := a.GetResource().GroupResource()
	if gr != corev1.Resource("namespaces") && !p.rules.PodSpecExtractor.HasPodSpec(gr) {
		return nil
	}
	verdict := p.rules.Validate(ctx, requested{a})
	for _, w := range verdict.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for k, v := range verdict.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, podSecurityAnnotation+k, v)
	}
	if verdict.Allowed {
		return nil
	}
	err := admission.NewForbidden(a, errors.New("not allowed by PodSecurity"))
	refusal := &apierrors.StatusError{}
	if !errors.As(err, &refusal) || verdict.Result == nil {
		return err
	}
	if verdict.Result.Message != "" {
		refusal.ErrStatus.Message = verdict.Result.Message // which names the object, too
	}
	if verdict.Result.Reason != "" {
		refusal.ErrStatus.Reason = verdict.Result.Reason
	}
	if verdict.Result.Code != 0 {
		refusal.ErrStatus.Code = verdict.Result.Code
	}
	if verdict.Result.Details != nil {
		refusal.ErrStatus.Details = verdict.Result.Details
	}
	return refusal
}

// A requested is a request as the library wants to see it.
type requested struct{ admission.Attributes }

func (r requested) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(r.Attributes.GetOperation())
}

func (r requested) GetObject() (runtime.Object, error) { return r.Attributes.GetObject(), nil }

func (r requested) GetOldObject() (runtime.Object, error) { return r.Attributes.GetOldObject(), nil }

func (r requested) GetUserName() string { return r.GetUserInfo().GetName() }
