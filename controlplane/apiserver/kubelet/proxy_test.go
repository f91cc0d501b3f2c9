package kubelet

// Tests of the proxies and of how targets are chosen.

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Lingers for a second after a SPDY connection whose close failed, in case
		// somebody asks why.
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// A client's, which after a connection that broke off goes on until its next
		// ping fails.
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"),
		// A kubelet's, which waits for a client's streams after its connection has ended, too.
		goleak.IgnoreTopFunction("k8s.io/cri-streaming/pkg/streaming/remotecommand.(*v4ProtocolHandler).waitForStreams"),
	)
}

// backendFor tells what reached it.
func backendFor(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		certs := 0
		if r.TLS != nil {
			certs = len(r.TLS.PeerCertificates)
		}
		fmt.Fprintf(w, "%s %s %s auth=%q certs=%d", name, r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), certs)
	})
}

func TestProxies(t *testing.T) {
	b := start(t, nil)
	b.serve(t, "10.0.0.7%node-1:8080", false, backendFor("pod"))
	b.serve(t, "10.0.0.7%node-1:8443", true, backendFor("tls"))
	b.serve(t, "[fd00::7%node-1]:8080", false, backendFor("six"))
	b.serve(t, "node-1:9100", false, backendFor("exporter"))
	b.serve(t, "10.0.0.9:8090", false, backendFor("free"))
	b.serveKubelet(t, "node-3:11250", "node-3")
	const pods, nodes, svcs = "/api/v1/namespaces/ns/pods/", "/api/v1/nodes/", "/api/v1/namespaces/ns/services/"
	for _, tc := range []struct {
		name, method, path string
		code               int
		want               string
	}{
		{"pod, first port", "GET", pods + "web/proxy/x", 200, `pod GET /x auth="" certs=0`},
		{"pod, port", "GET", pods + "web:8080/proxy/x/y?q=1", 200, `pod GET /x/y?q=1 auth="" certs=0`},
		{"pod, http", "PUT", pods + "http:web:8080/proxy/x", 200, `pod PUT /x auth="" certs=0`},
		{"pod, https, not verified, no certificate shown", "GET", pods + "https:web:8443/proxy/", 200, `tls GET / auth="" certs=0`},
		{"pod, delete", "DELETE", pods + "web/proxy/x", 200, `pod DELETE /x auth="" certs=0`},
		{"pod, trailing slash", "POST", pods + "web/proxy/x/", 200, `pod POST /x/ auth="" certs=0`},
		{"pod, no slash", "GET", pods + "web/proxy", 301, ""},
		{"pod, IPv6", "GET", pods + "six/proxy/x", 200, `six GET /x auth="" certs=0`},
		{"pod, no agent", "GET", pods + "away/proxy/x", 503, `error trying to reach service: dial 10.0.0.7%node-9:8080: no agent is connected for node "10.0.0.7%node-9"`},
		{"pod, loopback", "GET", pods + "loopback/proxy/x", 400, "address not allowed"},
		{"pod, no address", "GET", pods + "starting/proxy/x", 503, "pod starting has no IP address yet"},
		{"pod, no node", "GET", pods + "pending/proxy/x", 400, "does not have a host assigned"},
		{"pod, no port", "GET", pods + "portless/proxy/x", 503, `dial 10.0.0.7%node-1:80: `},
		{"pod, no port, http", "GET", pods + "http:portless:/proxy/x", 503, `dial 10.0.0.7%node-1:80: `},
		{"pod, no port, https", "GET", pods + "https:portless:/proxy/x", 503, `dial 10.0.0.7%node-1:443: `},
		{"pod, port out of range", "GET", pods + "web:99999/proxy/x", 400, `invalid port "99999"`},
		{"pod, port by name", "GET", pods + "web:http/proxy/x", 400, `invalid port "http"`},
		{"pod, odd scheme", "GET", pods + "ftp:web:80/proxy/x", 400, "invalid pod request"},
		{"pod, none", "GET", pods + "none/proxy/x", 404, `pods "none" not found`},

		{"kubelet", "GET", nodes + "node-1/proxy/healthz", 200, "/healthz from kube-apiserver-kubelet-client"},
		{"kubelet by port", "GET", nodes + "node-1:10250/proxy/pods", 200, "/pods from kube-apiserver-kubelet-client"},
		{"kubelet at another port", "GET", nodes + "node-3/proxy/pods", 200, "/pods from kube-apiserver-kubelet-client"},
		{"port of a node", "GET", nodes + "node-1:9100/proxy/metrics", 200, `exporter GET /metrics auth="" certs=0`},
		{"port of a node, nobody there", "GET", nodes + "node-2:9100/proxy/metrics", 503, `no agent is connected for node "node-2"`},
		{"kubelet, no agent", "GET", nodes + "node-9/proxy/pods", 503, `error trying to reach service: dial node-9:10250: no agent is connected for node "node-9"`},
		{"node, none", "GET", nodes + "other/proxy/pods", 404, `nodes "other" not found`},
		{"node, port 0", "GET", nodes + "node-1:0/proxy/pods", 400, `invalid port "0"`},

		{"service, port by name", "GET", svcs + "s:http/proxy/x", 200, `pod GET /x auth="" certs=0`},
		{"service, port by number", "GET", svcs + "s:80/proxy/x", 200, `pod GET /x auth="" certs=0`},
		{"service, https", "GET", svcs + "https:s:https/proxy/x", 200, `tls GET /x auth="" certs=0`},
		{"service, its only port", "GET", svcs + "single/proxy/x", 200, `pod GET /x auth="" certs=0`},
		{"service, endpoint of no node", "GET", svcs + "s:free/proxy/x", 200, `free GET /x auth="" certs=0`},
		{"service, which port", "GET", svcs + "s/proxy/x", 503, `no service port "" found for service "s"`},
		{"service, no such port", "GET", svcs + "s:81/proxy/x", 503, `no service port "81" found for service "s"`},
		{"service, none", "GET", svcs + "none/proxy/x", 404, `services "none" not found`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body, _ := b.get(t, tc.method, tc.path)
			if code != tc.code {
				t.Fatalf("code %d, want %d: %s", code, tc.code, body)
			}
			if code == 200 && body != tc.want {
				t.Errorf("got %q, want %q", body, tc.want)
			}
			if code >= 400 && !strings.Contains(message(t, body), tc.want) {
				t.Errorf("says %q, want %q", message(t, body), tc.want)
			}
		})
	}
	code, _, header := b.get(t, http.MethodGet, pods+"web/proxy/redirect")
	if want := pods + "web/proxy/elsewhere"; code != 302 || !strings.HasSuffix(header.Get("Location"), want) {
		t.Errorf("redirect: %d to %q, want to %q", code, header.Get("Location"), want)
	}
}

// TestProxyKeepsNoConnection: the next request may be for another pod at the same address, so
// it is dialed, and asked for, anew.
func TestProxyKeepsNoConnection(t *testing.T) {
	const addr = "10.0.0.7%node-1:8080"
	b := start(t, nil)
	b.serve(t, addr, false, backendFor("pod"))
	for i, path := range []string{"pods/web", "pods/two", "services/single"} {
		if code, body, _ := b.get(t, http.MethodGet, "/api/v1/namespaces/ns/"+path+"/proxy/x"); code != http.StatusOK || b.net.dials(addr) != i+1 {
			t.Errorf("%s: %d %s, after %d dials, want %d", path, code, body, b.net.dials(addr), i+1)
		}
	}
}

// TestTargets: which addresses a proxy may be led to.
func TestTargets(t *testing.T) {
	for _, tc := range []struct {
		ip, node, port string
		local          bool
		want           string // empty: refused
	}{
		{"10.0.0.7", "node-1", "80", false, "10.0.0.7%node-1:80"},
		{"10.0.0.7", "", "80", false, "10.0.0.7:80"},
		{"fd00::7", "node-1", "80", false, "[fd00::7%node-1]:80"},
		{"::ffff:10.0.0.7", "node-1", "80", false, "10.0.0.7%node-1:80"},
		{"127.0.0.1", "node-1", "80", false, ""},
		{"127.0.0.1", "node-1", "80", true, "127.0.0.1%node-1:80"},
		{"::1", "node-1", "80", false, ""},
		{"::ffff:127.0.0.1", "node-1", "80", false, ""},
		{"169.254.169.254", "node-1", "80", false, ""},
		{"fe80::1", "node-1", "80", false, ""},
		{"fe80::1%eth0", "node-1", "80", true, ""},
		{"224.0.0.1", "node-1", "80", false, ""},
		{"ff02::1", "node-1", "80", false, ""},
		{"0.0.0.0", "node-1", "80", true, ""},
		{"::", "node-1", "80", true, ""},
		{"example.com", "node-1", "80", true, ""},
		{"", "node-1", "80", true, ""},
		{"10.0.0.7", "node-1", "", false, ""},
		{"10.0.0.7", "node-1", "-1", false, ""},
		{"10.0.0.7", "node-1", "65536", false, ""},
		{"10.0.0.7", "node-1", "80%x", false, ""},
	} {
		b := &backend{Options: Options{AllowLocalTargets: tc.local}}
		got, err := b.target(tc.ip, tc.node, tc.port)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%q on %q port %q (local %v): got %q, %v; want %q", tc.ip, tc.node, tc.port, tc.local, got, err, tc.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	slices, err := endpointSlices(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	slices = append(slices, &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeFQDN,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"evil.example.com"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](1)}, {Port: nil}},
	})
	for name, want := range map[string]string{
		"http": "[{10.0.0.7 node-1  8080}]", "https": "[{10.0.0.7 node-1  8443}]", "free": "[{10.0.0.9   8090}]", "none": "[]", "": "[]",
	} {
		if got := fmt.Sprint(endpoints(slices, name)); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
	if _, ok := pick(nil); ok {
		t.Error("picked one of none")
	}
}

// TestParameters: the query of each subresource is read into its options.
func TestParameters(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codec := runtime.NewParameterCodec(scheme)
	for _, tc := range []struct {
		query string
		into  runtime.Object
		want  string // empty: an error
	}{
		{"container=c&follow=true&tailLines=3", &corev1.PodLogOptions{}, "container:c follow:true tail:3"},
		{"follow=", &corev1.PodLogOptions{}, "container: follow:true tail:-"},
		{"follow=false", &corev1.PodLogOptions{}, "container: follow:false tail:-"},
		{"tailLines=many", &corev1.PodLogOptions{}, ""},
		{"sinceTime=yesterday", &corev1.PodLogOptions{}, ""},
		{"container=c&command=a&command=b+c&stdin=1&tty=true", &corev1.PodExecOptions{}, "c [a b c] stdin:true stdout:false tty:true"},
		{"container=c&stdout=true", &corev1.PodAttachOptions{}, "c stdin:false stdout:true"},
		{"ports=80&ports=443", &corev1.PodPortForwardOptions{}, "[80 443]"},
		{"ports=99999999999", &corev1.PodPortForwardOptions{}, ""},
		{"path=/a/b", &corev1.PodProxyOptions{}, "/a/b"},
		{"path=/a/b", &corev1.NodeProxyOptions{}, "/a/b"},
		{"path=/a/b", &corev1.ServiceProxyOptions{}, "/a/b"},
	} {
		q, err := url.ParseQuery(tc.query)
		if err != nil {
			t.Fatal(err)
		}
		err = codec.DecodeParameters(q, corev1.SchemeGroupVersion, tc.into)
		if tc.want == "" {
			if err == nil {
				t.Errorf("%s: accepted as %+v", tc.query, tc.into)
			}
			continue
		}
		if got := written(tc.into); err != nil || got != tc.want {
			t.Errorf("%s: got %q, %v; want %q", tc.query, got, err, tc.want)
		}
	}
}

func written(o runtime.Object) string {
	switch o := o.(type) {
	case *corev1.PodLogOptions:
		tail := "-"
		if o.TailLines != nil {
			tail = fmt.Sprint(*o.TailLines)
		}
		return fmt.Sprintf("container:%s follow:%v tail:%s", o.Container, o.Follow, tail)
	case *corev1.PodExecOptions:
		return fmt.Sprintf("%s %v stdin:%v stdout:%v tty:%v", o.Container, o.Command, o.Stdin, o.Stdout, o.TTY)
	case *corev1.PodAttachOptions:
		return fmt.Sprintf("%s stdin:%v stdout:%v", o.Container, o.Stdin, o.Stdout)
	case *corev1.PodPortForwardOptions:
		return fmt.Sprint(o.Ports)
	case *corev1.PodProxyOptions:
		return o.Path
	case *corev1.NodeProxyOptions:
		return o.Path
	case *corev1.ServiceProxyOptions:
		return o.Path
	}
	return "?"
}

// TestLoadTLS: files that cannot be used are named, and a renewed pair is used.
func TestLoadTLS(t *testing.T) {
	p := newPKI(t)
	ca := filepath.Join(p.dir, "ca.crt")
	cert, key := p.clientFiles("first")
	empty := filepath.Join(p.dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ ca, cert, key, says string }{
		{"/nowhere/ca.crt", cert, key, "/nowhere/ca.crt"},
		{empty, cert, key, empty},
		{ca, "/nowhere/client.crt", key, "/nowhere/client.crt"},
		{ca, cert, "/nowhere/client.key", "/nowhere/client.key"},
		{ca, cert, empty, "client certificate for kubelets"},
	} {
		if _, _, err := LoadTLS(new(auth.Files), []string{tc.ca}, tc.cert, tc.key); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("got %v, want an error about %q", err, tc.says)
		}
	}
	foreign := pkitest.New(t, "elsewhere")
	shown := foreign.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "kubelet"}, DNSNames: []string{"node-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	for name, cas := range map[string][]string{
		"the cluster's alone":   {ca},
		"another beside it":     {ca, p.write("foreign.crt", foreign.PEM())},
		"the second of several": {ca, p.write("several.crt", append(pkitest.New(t, "kubelet-0").PEM(), foreign.PEM()...))},
	} {
		conf, authorities, err := LoadTLS(new(auth.Files), cas, cert, key)
		if err != nil {
			t.Fatal(err)
		}
		err = conf.VerifyConnection(tls.ConnectionState{ServerName: "node-1", PeerCertificates: []*x509.Certificate{shown.Leaf}})
		if chains, verr := shown.Leaf.Verify(x509.VerifyOptions{Roots: authorities()}); (err == nil) != (len(cas) == 2) || (verr == nil) != (err == nil) {
			t.Errorf("%s: a kubelet of the other: %v, by those of now %v %v", name, err, chains, verr)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		conf, _, err := LoadTLS(new(auth.Files), []string{ca}, cert, key)
		if err != nil {
			t.Fatal(err)
		}
		renewed := p.issue("second")
		signer, _ := renewed.PrivateKey.(*ecdsa.PrivateKey)
		der, err := x509.MarshalPKCS8PrivateKey(signer)
		if err != nil {
			t.Fatal(err)
		}
		for file, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: renewed.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
			if err = os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // the bubble's clock: the files are looked at once a second
		if shown, err := conf.GetClientCertificate(nil); err != nil || shown.Leaf.Subject.CommonName != "second" {
			t.Errorf("shows %v, %v", shown, err)
		}
	})
}
