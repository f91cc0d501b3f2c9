package kubeauth

// Tests of the authorizer: a table of requests and decisions, in testdata, for a small
// cluster of two nodes.

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func info(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

// users are the identities in the table.
var users = map[string]user.Info{
	"admin":        info("kubernetes-admin", "system:masters"),
	"node-1":       info("system:node:node-1", "system:nodes"),
	"node-2":       info("system:node:node-2", "system:nodes"),
	"new-node":     info("system:node:new", "system:nodes"),
	"unnamed":      info("system:node:", "system:nodes"),
	"nogroup":      info("system:node:node-1"),
	"noname":       info("someone", "system:nodes"),
	"boot":         info("system:bootstrap:abcdef", "system:bootstrappers", JoinGroup),
	"boot2":        info("system:bootstrap:fedcba", "system:bootstrappers", "system:bootstrappers:edge"),
	"bootnode":     info("system:node:node-1", "system:nodes", "system:bootstrappers"),
	"controllers":  info("system:kube-controller-manager"),
	"scheduler":    info("system:kube-scheduler"),
	"kubelet-user": info("kube-apiserver-kubelet-client", "hawser:kubelet-admin"),
	"alice":        info("alice", "developers"),
	"robot":        info("system:serviceaccount:ns:builder", "system:serviceaccounts", "system:serviceaccounts:ns"),
	"anonymous":    &user.DefaultInfo{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}},
}

func local(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func envFrom(name string) []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("s-" + name), Key: "k"}}},
		{Name: "B", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("c-" + name), Key: "k"}}},
	}
}

func allFrom(name string) []corev1.EnvFromSource {
	return []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("s-" + name)}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("c-" + name)}},
	}
}

// webPod names a secret and a config map in every possible field.
func webPod() *corev1.Pod {
	ref := local("s-iscsi")
	vol := func(name string, s corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: s}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"},
		Spec: corev1.PodSpec{
			NodeName: "node-1", ServiceAccountName: "builder",
			ImagePullSecrets: []corev1.LocalObjectReference{local("s-pull")},
			InitContainers:   []corev1.Container{{Name: "i", Env: envFrom("init"), EnvFrom: allFrom("initall")}},
			Containers:       []corev1.Container{{Name: "c", Env: envFrom("env"), EnvFrom: allFrom("envall")}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "e", Env: envFrom("eph"),
			}}},
			Volumes: []corev1.Volume{
				vol("v1", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s-vol"}}),
				vol("v2", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("c-vol")}}),
				vol("v3", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{LocalObjectReference: local("s-proj")}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("c-proj")}},
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "api"}},
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "vault", Audience: "vault"}},
				}}}),
				vol("v4", corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: &ref}}),
				vol("v5", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &corev1.LocalObjectReference{Name: "s-csi"}}}),
				vol("claim", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}),
				vol("scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
			},
		},
	}
}

func simplePod(ns, name, node, suffix string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(name + "-uid")},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "sa-" + suffix,
			Containers: []corev1.Container{{Name: "c", Env: envFrom(suffix)}},
		},
	}
}

// mirrorOf makes a mirror pod of p with references that NodeRestriction would refuse.
func mirrorOf(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	return p
}

func madeBy(name, user string) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Username: user},
	}
}

func volumeOf(name, namespace, claim string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: claim}},
	}
}

func cluster() []runtime.Object {
	return []runtime.Object{
		webPod(),
		simplePod("ns", "db", "node-2", "db"),
		simplePod("ns", "pending", "", "pending"),
		simplePod("other", "web", "node-2", "env"),
		mirrorOf(simplePod("ns", "mirror-node-1", "node-1", "mirror")),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "n1"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", UID: "n2"}},
		volumeOf("pv-1", "ns", "data"), volumeOf("pv-other", "other", "data"),
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-free"}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "to-node-1"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "node-1"}},
		madeBy("of-boot", "system:bootstrap:abcdef"),
		madeBy("of-boot2", "system:bootstrap:fedcba"),
		madeBy("of-node-1", "system:node:node-1"),
		madeBy("of-node-2", "system:node:node-2"),
	}
}

// objects returns Objects of objs, with filled caches.
func objects(t *testing.T, objs ...runtime.Object) (*Objects, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objs...)
	f := informers.NewSharedInformerFactory(client, 0)
	o := NewObjects()
	if err := o.Use(client, f); err != nil {
		t.Fatal(err)
	}
	f.Start(t.Context().Done())
	f.WaitForCacheSync(t.Context().Done())
	t.Cleanup(f.Shutdown) // the informers end with the test's context
	return o, client
}

// attributes reads a line of the table: verb, resource.group/subresource or
// path, namespace/name or name or -, and a field selector or -.
func attributes(t *testing.T, u user.Info, verb, what, target, selector string) authorizer.AttributesRecord {
	t.Helper()
	a := authorizer.AttributesRecord{User: u, Verb: verb}
	if strings.HasPrefix(what, "/") {
		a.Path = what
		return a
	}
	a.ResourceRequest = true
	what, a.Subresource, _ = strings.Cut(what, "/")
	a.Resource, a.APIGroup, _ = strings.Cut(what, ".")
	if target != "-" {
		if ns, name, ok := strings.Cut(target, "/"); ok {
			a.Namespace, a.Name = ns, name
		} else {
			a.Name = target
		}
	}
	if selector != "-" {
		s, err := fields.ParseSelector(selector)
		if err != nil {
			t.Fatalf("selector %q: %v", selector, err)
		}
		a.FieldSelectorRequirements = s.Requirements()
	}
	return a
}

func TestAuthorize(t *testing.T) {
	o, _ := objects(t, cluster()...)
	for node := range users { // the table has more requests at once than a cluster
		o.live.names.Add(node, rate.NewLimiter(rate.Inf, 1))
	}
	z := NewAuthorizer(o)
	f, err := os.Open("testdata/authorize.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cases := 0
	sc := bufio.NewScanner(f)
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		if len(w) != 6 {
			t.Fatalf("line %d: %d words, want 6: %q", n, len(w), line)
		}
		for _, who := range strings.Split(w[0], ",") {
			u, ok := users[who]
			if !ok {
				t.Fatalf("line %d: who is %q", n, who)
			}
			for _, verb := range strings.Split(w[1], ",") {
				cases++
				got, reason, err := z.Authorize(t.Context(), attributes(t, u, verb, w[2], w[3], w[4]))
				if err != nil {
					t.Errorf("line %d: %s %s: %v", n, who, verb, err)
				}
				if want := w[5] == "yes"; (got == authorizer.DecisionAllow) != want {
					t.Errorf("line %d: %s %s %s %s %s: allowed %v (%s), want %v", n, who, verb, w[2], w[3], w[4], !want, reason, want)
				}
				if got == authorizer.DecisionDeny {
					t.Errorf("line %d: denied; an authorizer behind ours would not be asked", n)
				}
			}
		}
	}
	if cases < 300 {
		t.Errorf("only %d cases were read", cases)
	}
}

// TestAuthorizeBeforeAnythingIsKnown: without caches, requests that depend on them are
// refused, and others are allowed.
func TestAuthorizeBeforeAnythingIsKnown(t *testing.T) {
	z := NewAuthorizer(NewObjects())
	for _, tc := range []struct {
		who, verb, what, target string
		want                    authorizer.Decision
		err                     error
	}{
		{"node-1", "get", "nodes", "node-1", authorizer.DecisionAllow, nil},
		{"node-1", "create", "nodes", "-", authorizer.DecisionAllow, nil},
		{"node-1", "get", "secrets", "ns/s-env", authorizer.DecisionNoOpinion, errNotReady},
		{"node-1", "get", "pods", "ns/web", authorizer.DecisionNoOpinion, errNotReady},
		{"boot", "create", "certificatesigningrequests.certificates.k8s.io", "-", authorizer.DecisionAllow, nil},
		{"boot", "get", "certificatesigningrequests.certificates.k8s.io", "of-boot", authorizer.DecisionNoOpinion, errNotReady},
		{"admin", "get", "secrets", "ns/s-env", authorizer.DecisionAllow, nil},
	} {
		got, _, err := z.Authorize(t.Context(), attributes(t, users[tc.who], tc.verb, tc.what, tc.target, "-"))
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s %s %s: got %v, %v; want %v, %v", tc.who, tc.verb, tc.what, got, err, tc.want, tc.err)
		}
	}
}

// TestCacheBehind: a node whose watch has its pod before our cache is allowed, and one whose
// pod has moved away is refused.
func TestCacheBehind(t *testing.T) {
	o, client := objects(t) // the cache is empty and stays so
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.PodList{Items: []corev1.Pod{*webPod(), *simplePod("ns", "db", "node-2", "db")}}, nil
	})
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, webPod(), nil })
	z := NewAuthorizer(o)
	for _, tc := range []struct {
		who, what, target string
		want              bool
	}{
		{"node-1", "secrets", "ns/s-env", true},
		{"node-2", "secrets", "ns/s-env", false}, // though the answer held such a pod
		{"node-1", "secrets", "ns/s-db", false},
		{"node-1", "pods", "ns/web", true},
		{"node-2", "pods", "ns/web", false},
	} {
		got, _, err := z.Authorize(t.Context(), attributes(t, users[tc.who], "get", tc.what, tc.target, "-"))
		if err != nil || (got == authorizer.DecisionAllow) != tc.want {
			t.Errorf("%s get %s %s: %v, %v; want %v", tc.who, tc.what, tc.target, got, err, tc.want)
		}
	}
}

// TestLiveQuestionsAreBounded: a node with too many forbidden requests gets a time to come
// back; other nodes are not affected.
func TestLiveQuestionsAreBounded(t *testing.T) {
	o, client := objects(t, cluster()...)
	client.ClearActions()
	z := NewAuthorizer(o)
	var last error
	for range liveBurst * 3 {
		for _, what := range []string{"secrets", "configmaps"} {
			if _, _, err := z.Authorize(t.Context(), attributes(t, users["node-1"], "get", what, "ns/s-db", "-")); err != nil {
				last = err
			}
		}
	}
	if s, ok := apierrors.SuggestsClientDelay(last); !apierrors.IsTooManyRequests(last) || !ok || s != 1 {
		t.Errorf("node-1 was told %v, come back after %d s", last, s)
	}
	for _, what := range []string{"secrets", "pods"} {
		got, _, err := z.Authorize(t.Context(), attributes(t, users["node-2"], "get", what, "ns/web", "-"))
		if err != nil || got == authorizer.DecisionAllow {
			t.Errorf("node-2 asks for another's %s: %v, %v", what, got, err)
		}
	}
}

// TestNodesToldApartAreBounded: names cost memory up to a bound.
func TestNodesToldApartAreBounded(t *testing.T) {
	l := newLimits(1, 1)
	for i := range toldApart + 10 {
		l.allow(strconv.Itoa(i), 1)
	}
	if n := l.names.Len(); n != toldApart {
		t.Errorf("%d nodes are told apart, want %d", n, toldApart)
	}
}

// TestLiveQuestionsHaveABudget: forbidden requests cause a bounded number of reads from the
// API server. Their client gets a time to come back, and others are answered.
func TestLiveQuestionsHaveABudget(t *testing.T) {
	ask := func(who, verb, resource, target string) func(*Objects) error {
		return func(o *Objects) error {
			_, _, err := NewAuthorizer(o).Authorize(t.Context(), attributes(t, users[who], verb, resource, target, "-"))
			return err
		}
	}
	const csr = "certificatesigningrequests.certificates.k8s.io"
	for name, tc := range map[string]struct {
		most        int
		busy, other func(*Objects) error
	}{
		"a secret":             {liveBurst, ask("node-1", "get", "secrets", "ns/s-db"), ask("node-2", "get", "secrets", "ns/s-web")},
		"a node's request":     {liveBurst, ask("node-1", "get", csr, "of-boot"), ask("node-2", "get", csr, "of-boot")},
		"no request":           {liveBurst, ask("node-1", "get", csr, "nobody's"), ask("node-2", "get", csr, "of-node-1")},
		"a newcomer's request": {joinBurst, ask("boot", "get", csr, "of-boot2"), ask("boot2", "get", csr, "of-boot2")},
		"a request to watch":   {joinBurst, ask("boot", "watch", csr, "of-boot"), ask("node-1", "watch", csr, "of-node-1")},
		"a mirror pod's node":  {liveBurst, mirrors(t, "node-1"), ask("node-2", "get", "pods", "ns/web")},
	} {
		o, client := objects(t, cluster()...)
		client.ClearActions()
		var last error
		for range tc.most * 3 {
			if err := tc.busy(o); err != nil {
				last = err
			}
		}
		if n := len(client.Actions()); n < tc.most || n > tc.most*2 || !apierrors.IsTooManyRequests(last) {
			t.Errorf("%s: %d questions for %d requests, then %v", name, n, tc.most*3, last)
		}
		if s, ok := apierrors.SuggestsClientDelay(last); !ok || s != 1 {
			t.Errorf("%s: told to come back after %d s", name, s)
		}
		if err := tc.other(o); err != nil {
			t.Errorf("%s, and another: %v", name, err)
		}
	}
}

// TestStore: what the requests of a machine that joins depend on is read from the store, if
// there is one.
func TestStore(t *testing.T) {
	o, client := objects(t, madeBy("mine", "system:bootstrap:fedcba"))
	o.Read(Store{
		Secret: func(context.Context, string, string) (*corev1.Secret, error) { return tokenSecret(nil), nil },
		CertificateSigningRequest: func(_ context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
			return madeBy(name, "system:bootstrap:abcdef"), nil
		},
	})
	client.ClearActions()
	if _, ok, err := (&bootstrapTokens{secrets: o.Secret}).AuthenticateToken(t.Context(), "abcdef.0123456789abcdef"); !ok || err != nil {
		t.Errorf("the token: %v, %v", ok, err)
	}
	a := attributes(t, users["boot"], "watch", "certificatesigningrequests.certificates.k8s.io", "mine", "-")
	if d, _, err := NewAuthorizer(o).Authorize(t.Context(), a); d != authorizer.DecisionAllow || err != nil {
		t.Errorf("the request: %v, %v", d, err)
	}
	if n := len(client.Actions()); n > 0 {
		t.Errorf("%d requests to the API server", n)
	}
}

// mirrors makes a mirror pod of a node.
func mirrors(t *testing.T, node string) func(*Objects) error {
	return func(o *Objects) error {
		w := submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(nil)}
		return restrict(t, RestrictionConfig{Objects: o}).Validate(t.Context(), w.attributes(node), nil)
	}
}

func TestRulesFor(t *testing.T) {
	z := NewAuthorizer(NewObjects())
	for who, want := range map[string]struct {
		some       string
		incomplete bool
	}{
		"admin": {"* *", false}, "node-1": {"create certificatesigningrequests", true},
		"boot": {"create certificatesigningrequests", true}, "scheduler": {"create pods/binding", false},
		"alice": {"create selfsubjectaccessreviews", false}, "anonymous": {"", false},
	} {
		rules, paths, incomplete, err := z.RulesFor(t.Context(), users[who], "kube-system")
		// kubectl auth can-i --list shows the error beside an incomplete list.
		if (err != nil) != want.incomplete || incomplete != want.incomplete || len(paths) == 0 {
			t.Errorf("%s: incomplete %v, %d paths, %v", who, incomplete, len(paths), err)
		}
		var all []string
		for _, r := range rules {
			for _, v := range r.GetVerbs() {
				for _, res := range r.GetResources() {
					all = append(all, v+" "+res)
				}
			}
		}
		if got := strings.Join(all, ", "); want.some == "" && got != "" || !strings.Contains(got, want.some) {
			t.Errorf("%s: %q not in %q", who, want.some, got)
		}
	}
}
