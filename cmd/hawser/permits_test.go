// Tests of what is told of a cluster that refuses a hub something, or whose API server is
// not what it should be, and of the manifests.

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clientrest "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// refusedLines are what a hub says of a cluster that permits what may is true of.
func refusedLines(t *testing.T, may func(*authorizationv1.ResourceAttributes) bool, args ...string) []string {
	t.Helper()
	o, err := parse(t, append([]string{"--kubeconfig", "x"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientset()
	api.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, _ := a.(clienttesting.CreateAction)
		review, _ := create.GetObject().(*authorizationv1.SelfSubjectAccessReview)
		review.Status.Allowed = may(review.Spec.ResourceAttributes)
		return true, review, nil
	})
	var log bytes.Buffer
	refused, complete := refusedPermits(t.Context(), o, api, nil)
	if !complete {
		t.Error("not all was told")
	}
	for _, r := range refused {
		r.log(slog.New(slog.NewTextHandler(&log, nil)))
	}
	return strings.Split(strings.TrimSpace(log.String()), "\n")
}

// TestRefusedPermissions: a line for each, that says what it is about and how to grant it.
func TestRefusedPermissions(t *testing.T) {
	all := func(*authorizationv1.ResourceAttributes) bool { return true }
	if got := refusedLines(t, all); len(got) != 1 || got[0] != "" {
		t.Errorf("of a cluster that permits all it says %q", got)
	}
	for _, p := range permits() {
		chosen := strings.Join(besideControllers, ",") + ",csrcleaner"
		if p.controller != "" {
			chosen += "," + p.controller
		}
		for _, r := range p.reviews() {
			got := refusedLines(t, func(a *authorizationv1.ResourceAttributes) bool { return *a != r }, "--load-balancer-addresses=192.0.2.1", "--controllers="+chosen)
			for _, line := range got { // two features may need the same
				if !strings.Contains(line, "verb="+r.Verb) || !strings.Contains(line, p.object()) || !strings.Contains(line, "--force-conflicts") || !strings.Contains(line, "hawser manifest rbac --"+forBalancers+" --"+forControllers+"="+chosen+" |") {
					t.Errorf("without %v it says %q", r, got)
				}
			}
		}
	}
	noPatch := func(a *authorizationv1.ResourceAttributes) bool { return a.Verb != "patch" || a.Resource == "events" }
	if got := refusedLines(t, noPatch, "--controllers=csrcleaner"); len(got) != 1 || got[0] != "" {
		t.Errorf("of what it does not need it says %q", got)
	}
}

// TestUnansweredIsToldApart: an API server that cannot be reached, one whose certificate
// the clock does not agree with, and another one.
func TestUnansweredIsToldApart(t *testing.T) {
	// It is tried again until there is an answer, so it ends at the first line.
	tell := func(conf *clientrest.Config) string {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		line := writerFunc(func(b []byte) {
			defer cancel()
			log.Write(b)
		})
		if _, err := learnNames(ctx, conf, auth.NewServerNames(), slog.New(slog.NewTextHandler(line, nil))); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	var date string
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", date)
		if r.Header.Get("Authorization") == "Bearer expired" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer api.Close()
	api.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	known := &clientrest.Config{Host: api.URL, TLSClientConfig: clientrest.TLSClientConfig{CAData: ca}}
	for name, tc := range map[string]struct {
		conf *clientrest.Config
		date time.Time
		want string
	}{
		"well":          {known, time.Now(), ""},
		"an hour early": {known, time.Now().Add(time.Hour), "the clocks of this machine and of the API server differ"},
		"an hour late":  {known, time.Now().Add(-time.Hour), "the clocks of this machine and of the API server differ"},
		"unauthorized":  {&clientrest.Config{Host: api.URL, BearerToken: "expired", TLSClientConfig: known.TLSClientConfig}, time.Now(), "does not accept the token or the certificate in --kubeconfig"},
		"no program":    {&clientrest.Config{Host: api.URL, ExecProvider: failing(), TLSClientConfig: known.TLSClientConfig}, time.Time{}, "the program that --kubeconfig names gives no credentials"},
		"gone":          {&clientrest.Config{Host: "https://127.0.0.1:1"}, time.Time{}, "the API server cannot be reached"},
		"another":       {&clientrest.Config{Host: api.URL, TLSClientConfig: clientrest.TLSClientConfig{CAData: pkitest.New(t, "other").PEM()}}, time.Time{}, "is not it, by the kubeconfig"},
	} {
		date = tc.date.UTC().Format(http.TimeFormat)
		got := tell(tc.conf)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: the log says\n%s", name, got)
		}
	}
}

// failing is a program that gives no credentials.
func failing() *clientcmdapi.ExecConfig {
	return &clientcmdapi.ExecConfig{Command: "false", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
}

// TestFailingProgramIsLookedAt: a request that a program has no credentials for is a reason to look
// for what is the matter.
func TestFailingProgramIsLookedAt(t *testing.T) {
	conf := &clientrest.Config{Host: "https://192.0.2.1", ExecProvider: failing()}
	tr, err := newTrouble(&serverOptions{}, conf, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	api, err := tr.newClient(conf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = api.Discovery().ServerVersion(); err == nil || !strings.Contains(err.Error(), "getting credentials") {
		t.Error(err)
	}
	if len(tr.failed) != 1 {
		t.Error("nobody looks for what is the matter")
	}
}

// TestRemedyOfRefusedCredentials: what a kubeconfig says itself is read once, and files that it
// names are followed.
func TestRemedyOfRefusedCredentials(t *testing.T) {
	const again = "start the hub again"
	cert := clientrest.TLSClientConfig{CertFile: "/x/crt", KeyFile: "/x/key"}
	for name, tt := range map[string]struct {
		conf clientrest.Config
		want string
	}{
		"a token":                        {clientrest.Config{BearerToken: "t"}, again},
		"a token's file":                 {clientrest.Config{BearerToken: "t", BearerTokenFile: "/x/token"}, "replace /x/token, which is followed"},
		"a password":                     {clientrest.Config{Username: "u", Password: "p"}, again},
		"a certificate":                  {clientrest.Config{TLSClientConfig: clientrest.TLSClientConfig{CertData: []byte("c"), KeyData: []byte("k")}}, again},
		"a certificate's file":           {clientrest.Config{TLSClientConfig: cert}, "replace /x/crt and /x/key, which are followed"},
		"a token and a certificate file": {clientrest.Config{BearerToken: "t", TLSClientConfig: cert}, again},
		"a certificate and a program":    {clientrest.Config{TLSClientConfig: cert, ExecProvider: failing()}, "replace /x/crt"},
		"a program":                      {clientrest.Config{ExecProvider: failing()}, "the program false"},
		"nothing":                        {clientrest.Config{}, again},
	} {
		got := notAccepted(&tt.conf)
		if !strings.Contains(got, tt.want) || strings.Contains(got, again) != (tt.want == again) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// someHash has the form of a hash of an authority.
var someHash = "sha256:" + strings.Repeat("00", sha256.Size)

// TestManifestsDecode: what is printed is what the API knows, to the last field.
func TestManifestsDecode(t *testing.T) {
	agent := []string{"--image=i", "--server=https://hub:8132", "--discovery-token-ca-cert-hash=" + someHash, "--allow-target=10.96.0.0/12"}
	for name, args := range map[string][]string{
		"rbac": {"rbac"}, "rbac of all": {"rbac", "--controllers=*"}, "ccm": {"ccm"}, "ccm's pods": {"ccm", "--image=i", "--replicas=2"}, "server": {"server", "--image=i", "--address=hub.example.net"}, "servers": {"server", "--image=i", "--replicas=3"}, "static server": {"server", "--image=i", "--static-pod"},
		"agents of several": slices.Concat([]string{"agent"}, agent, []string{"--server=https://hub-2:8132,https://hub-3"}), "agent": slices.Concat([]string{"agent"}, agent), "static agent": slices.Concat([]string{"agent", "--static-pod"}, agent),
	} {
		var out bytes.Buffer
		cmd := newManifest()
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(name, err)
		}
		strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
		docs, n := yamlutil.NewDocumentDecoder(io.NopCloser(&out)), 0
		for buf := make([]byte, 1<<16); ; n++ {
			k, err := docs.Read(buf)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(name, err)
			}
			if _, _, err := strict.Decode(buf[:k], nil, nil); err != nil {
				t.Errorf("%s: %v in\n%s", name, err, buf[:k])
			}
		}
		if n == 0 {
			t.Errorf("%s prints nothing", name)
		}
	}
	for _, args := range [][]string{
		{"rbac", "--controllers=none"},
		{"ccm", "--replicas=2"},
		{"ccm", "--image=i", "--replicas=0"},
		{"server"},
		{"server", "--image=i", "--replicas=0"},
		{"agent", "--image=i"},
		{"agent", "--image=i", "--server=https://hub:8132,hub-2", "--discovery-token-ca-cert-hash=" + someHash},
		{"agent", "--image=i", "--server=https://hub:8132"},
		{"agent", "--image=i", "--server=https://hub:8132", "--discovery-token-ca-cert-hash=sha256:00"},
		{"agent", "--image=i", "--server=https://hub:8132", "--discovery-token-ca-cert-hash=" + someHash, "--allow-target=all"},
	} {
		cmd := newManifest()
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestPodsOfTheMachine: pods that write to directories of their machine, which are root's,
// run as root whatever the image says, with no capability, and write nowhere else. The join
// token is readable for root alone, as the agent wants it.
func TestPodsOfTheMachine(t *testing.T) {
	m := podManifest{image: "i", servers: []string{"https://hub:8132"}, caHash: someHash, allow: []string{"10.96.0.0/12", "10.244.0.0/16"}, kubeconfig: "/k"}
	agents := m.agents().Spec.Template.Spec
	for name, spec := range map[string]corev1.PodSpec{"hub": m.staticHub().Spec, "agent": m.staticAgent().Spec, "agents": agents} {
		if s := spec.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser != 0 {
			t.Errorf("%s runs as whom its image says", name)
		}
		s := spec.Containers[0].SecurityContext
		if s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %v", name, s)
		}
	}
	if mode := agents.Volumes[0].Secret.DefaultMode; mode == nil || *mode != 0o400 {
		t.Errorf("the token's mode is %v", mode)
	}
	m.servers = append(m.servers, "https://hub-2")
	if args := m.agents().Spec.Template.Spec.Containers[0].Command; !slices.Contains(args, "--server=https://hub:8132,https://hub-2") {
		t.Errorf("%q", args)
	}
	if args := agents.Containers[0].Command; !slices.Contains(args, "--allow-target=10.96.0.0/12,10.244.0.0/16") {
		t.Errorf("%q", args)
	}
}

// TestPodsOfHubs: a kubelet does not open the keys of a hub to the group of its volume, the
// Service leads to both of its ports, and the pod beside an API server has both sockets.
func TestPodsOfHubs(t *testing.T) {
	m := podManifest{image: "i", replicas: 3, kubeconfig: "/k"}
	ports := map[int32]bool{}
	for _, o := range m.hub() {
		switch o := o.(type) {
		case *appsv1.StatefulSet:
			s := o.Spec.Template.Spec.SecurityContext
			if s.FSGroupChangePolicy == nil || *s.FSGroupChangePolicy != corev1.FSGroupChangeOnRootMismatch {
				t.Errorf("the group of volumes is changed %v", s.FSGroupChangePolicy)
			}
			if mount, c := "/var/lib/hawser", o.Spec.Template.Spec.Containers[0]; !slices.Contains(c.Command, "--data-dir="+mount+"/hub") {
				t.Errorf("the hub has no directory of its own below the volume's: %q", c.Command)
			}
		case *corev1.Service:
			for _, p := range o.Spec.Ports {
				ports[p.Port] = true
			}
		}
	}
	if !ports[besidePort] || !ports[connectPort] {
		t.Errorf("the Service has the ports %v", ports)
	}
	c := m.staticHub().Spec.Containers[0]
	for _, arg := range []string{"--connect-uds=/run/hawser/connect.sock", "--konnectivity-uds=/run/hawser/konnectivity.sock"} {
		if !slices.Contains(c.Command, arg) {
			t.Errorf("without %s: %q", arg, c.Command)
		}
	}
}

// TestPermitCovers: a permit for some objects says nothing of others.
func TestPermitCovers(t *testing.T) {
	all := permit{resource: "configmaps", verbs: []string{"get", "list"}, namespace: "ns"}
	some := all
	some.names = []string{"a", "b"}
	for name, tt := range map[string]struct {
		names     []string
		all, some bool
	}{
		"one of them": {[]string{"a"}, true, true}, "another": {[]string{"c"}, true, false}, "whatever it is called": {nil, true, false},
	} {
		other := permit{resource: "configmaps", verbs: []string{"get"}, namespace: "ns", names: tt.names}
		if all.covers(&other) != tt.all || some.covers(&other) != tt.some {
			t.Errorf("%s: %v and %v", name, all.covers(&other), some.covers(&other))
		}
	}
}
