// What each plugin changes and refuses.

package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// attributes are those of a write to resource/subresource.
func attributes(obj, old runtime.Object, resource schema.GroupVersionResource, sub string, op admission.Operation) admission.Attributes {
	return admission.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "ns", "name", resource, sub, op, nil, false, &user.DefaultInfo{Name: "joe"})
}

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

func admitPod(t *testing.T, p admission.Interface, pod *corev1.Pod, sub string) error {
	t.Helper()
	if !p.Handles(admission.Create) {
		t.Fatal("does not handle create")
	}
	return p.(admission.MutationInterface).Admit(t.Context(), attributes(pod, nil, podResource, sub, admission.Create), nil)
}

func TestDefaultTolerationSeconds(t *testing.T) {
	plugin := DefaultTolerationSeconds(10, 20)
	seconds := func(p corev1.Pod) string {
		var out []string
		for _, t := range p.Spec.Tolerations {
			s := "for ever"
			if t.TolerationSeconds != nil {
				s = map[int64]string{1: "1", 10: "10", 20: "20"}[*t.TolerationSeconds]
			}
			out = append(out, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+s)
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		name  string
		given []corev1.Toleration
		want  string
	}{
		{"none", nil, "not-ready:10 unreachable:20"},
		{"one", []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](1)}}, "not-ready:1 unreachable:20"},
		{"everything", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, ":for ever"},
		{"other effect", []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}, "not-ready:for ever not-ready:10 unreachable:20"},
		{"any effect", []corev1.Toleration{{Key: corev1.TaintNodeUnreachable}}, "unreachable:for ever not-ready:10"},
	} {
		p := corev1.Pod{Spec: corev1.PodSpec{Tolerations: c.given}}
		if err := admitPod(t, plugin, &p, ""); err != nil || seconds(p) != c.want {
			t.Errorf("%s: %s, %v", c.name, seconds(p), err)
		}
		before := len(p.Spec.Tolerations)
		if err := admitPod(t, plugin, &p, ""); err != nil || len(p.Spec.Tolerations) != before {
			t.Errorf("%s: not the same twice", c.name)
		}
	}
}

func TestTaintNodesByCondition(t *testing.T) {
	plugin := TaintNodesByCondition().(admission.MutationInterface)
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	n := &corev1.Node{}
	for range 2 {
		if err := plugin.Admit(t.Context(), attributes(n, nil, nodes, "", admission.Create), nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != corev1.TaintNodeNotReady || n.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("%+v", n.Spec.Taints)
	}
	if plugin.Handles(admission.Update) {
		t.Error("an update is tainted too")
	}
}

func TestPriority(t *testing.T) {
	never := corev1.PreemptNever
	client := fake.NewSimpleClientset(
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000, PreemptionPolicy: &never},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Value: 7, GlobalDefault: true},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "unusual"}, Value: 9, GlobalDefault: true},
	)
	factory := informers.NewSharedInformerFactory(client, 0)
	p := Priority().(*priority)
	if p.ValidateInitialization() == nil {
		t.Error("fit for use without a client")
	}
	p.SetExternalKubeClientSet(client)
	p.SetExternalKubeInformerFactory(factory)
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(factory.Shutdown)
	t.Cleanup(cancel)
	factory.WaitForCacheSync(ctx.Done())

	for _, c := range []struct {
		name    string
		spec    corev1.PodSpec
		want    int32
		class   string
		refused string
	}{
		{"by default the lower", corev1.PodSpec{}, 7, "usual", ""},
		{"by name", corev1.PodSpec{PriorityClassName: "high"}, 1000, "high", ""},
		{"the right number", corev1.PodSpec{PriorityClassName: "high", Priority: ptr.To[int32](1000)}, 1000, "high", ""},
		{"a wrong number", corev1.PodSpec{Priority: ptr.To[int32](5)}, 5, "usual", "the integer value of priority (5) must not be provided"},
		{"a wrong policy", corev1.PodSpec{PreemptionPolicy: &never}, 0, "usual", "PreemptionPolicy (Never) must not be provided"},
		{"no such class", corev1.PodSpec{PriorityClassName: "none"}, 0, "none", "no PriorityClass with name none was found"},
	} {
		pod := &corev1.Pod{Spec: c.spec}
		err := admitPod(t, p, pod, "")
		if c.refused != "" {
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || *pod.Spec.Priority != c.want || pod.Spec.PriorityClassName != c.class || pod.Spec.PreemptionPolicy == nil {
			t.Errorf("%s: %v, %+v", c.name, err, pod.Spec)
		}
	}
}

// There is one default: of two, pods would get either.
func TestOneDefaultPriorityClass(t *testing.T) {
	type class = *schedulingv1.PriorityClass
	named := func(name string, byDefault bool) class {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, GlobalDefault: byDefault}
	}
	p := Priority().(*priority)
	p.SetExternalKubeClientSet(fake.NewSimpleClientset(named("usual", true), named("other", false)))
	for _, c := range []struct {
		name    string
		is, was class
		refused bool
	}{
		{"another", named("another", false), nil, false},
		{"another default", named("another", true), nil, true},
		{"one becomes it", named("other", true), named("other", false), true},
		{"the default is written again", named("usual", true), named("usual", true), false},
		{"one of two that there are already", named("other", true), named("other", true), false},
		{"it ends to be it", named("usual", false), named("usual", true), false},
	} {
		op, old := admission.Create, runtime.Object(nil)
		if c.was != nil {
			op, old = admission.Update, c.was
		}
		err := p.Validate(t.Context(), attributes(c.is, old, schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"), "", op), nil)
		if refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "PriorityClass usual is already marked as default"); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A pod that is written anew without its priority keeps it, and one that gives
// another is left to validation, which refuses it.
func TestPriorityIsKept(t *testing.T) {
	p := Priority()
	if !p.Handles(admission.Update) {
		t.Fatal("updates are not its business")
	}
	never, lower := corev1.PreemptNever, corev1.PreemptLowerPriority
	was := &corev1.Pod{Spec: corev1.PodSpec{Priority: ptr.To[int32](1000), PreemptionPolicy: &never, PriorityClassName: "high"}}
	for _, c := range []struct {
		name     string
		is       corev1.PodSpec
		priority int32
		policy   corev1.PreemptionPolicy
	}{
		{"neither", corev1.PodSpec{PriorityClassName: "high"}, 1000, never},
		{"no policy", corev1.PodSpec{Priority: ptr.To[int32](1000)}, 1000, never},
		{"no number", corev1.PodSpec{PreemptionPolicy: &never}, 1000, never},
		{"others", corev1.PodSpec{Priority: ptr.To[int32](5), PreemptionPolicy: &lower}, 5, lower},
	} {
		pod := &corev1.Pod{Spec: c.is}
		err := p.(admission.MutationInterface).Admit(t.Context(), attributes(pod, was, corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Update), nil)
		if err != nil || *pod.Spec.Priority != c.priority || *pod.Spec.PreemptionPolicy != c.policy {
			t.Errorf("%s: %v, %v %v", c.name, err, *pod.Spec.Priority, *pod.Spec.PreemptionPolicy)
		}
	}
	pod := &corev1.Pod{} // from before there were priorities
	if err := p.(admission.MutationInterface).Admit(t.Context(), attributes(pod, &corev1.Pod{}, corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Update), nil); err != nil || pod.Spec.Priority != nil {
		t.Errorf("%v, %v", err, pod.Spec.Priority)
	}
}

func TestSigners(t *testing.T) {
	type csr = certificatesv1.CertificateSigningRequest
	resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	with := func(certificate string, conditions ...certificatesv1.RequestConditionType) *csr {
		c := &csr{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: "example.com/s"}, Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(certificate)}}
		for _, t := range conditions {
			c.Status.Conditions = append(c.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: t})
		}
		return c
	}
	for _, c := range []struct {
		name    string
		plugin  func(authorizer.Authorizer) admission.Interface
		sub     string
		is, was *csr
		granted string // "verb name"
		refused bool
	}{
		{"approve", CertificateApproval, "approval", with(""), with(""), "approve example.com/s", false},
		{"approve by domain", CertificateApproval, "approval", with(""), with(""), "approve example.com/*", false},
		{"approve another's", CertificateApproval, "approval", with(""), with(""), "approve example.com/t", true},
		{"approve with the right to sign", CertificateApproval, "approval", with(""), with(""), "sign example.com/s", true},
		{"not an approval", CertificateApproval, "status", with(""), with(""), "", false},
		{"sign", CertificateSigning, "status", with("x"), with(""), "sign example.com/s", false},
		{"sign without", CertificateSigning, "status", with("x"), with(""), "approve example.com/s", true},
		{"fail without", CertificateSigning, "status", with("", certificatesv1.CertificateFailed), with(""), "", true},
		{"other status", CertificateSigning, "status", with("x", "Other"), with("x"), "", false},
	} {
		authz := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetResource() == "signers" && a.GetAPIGroup() == "certificates.k8s.io" && a.GetVerb()+" "+a.GetName() == c.granted {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", errors.New("not granted")
		})
		err := c.plugin(authz).(admission.ValidationInterface).Validate(t.Context(), attributes(c.is, c.was, resource, c.sub, admission.Update), nil)
		if apierrors.IsForbidden(err) != c.refused || !c.refused && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	p, err := NamespaceLifecycle("default")
	if err != nil {
		t.Fatal(err)
	}
	a := admission.NewAttributesRecord(nil, nil, corev1.SchemeGroupVersion.WithKind("Namespace"), "", "default",
		corev1.SchemeGroupVersion.WithResource("namespaces"), "", admission.Delete, nil, false, &user.DefaultInfo{})
	if err := p.(admission.MutationInterface).Admit(t.Context(), a, nil); !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
}
