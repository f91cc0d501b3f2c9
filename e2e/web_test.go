// Web servers in pods, reached by the proxies of the API and by kubectl port-forward.

package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/e2e/await"
)

// A sawRequest is what the web server of a pod says of a request.
type sawRequest struct {
	Method, Path, Query, Authorization string
	TLS                                bool
	Certificates                       int // of the client
}

// serveWeb is the role of a web server that says what it saw: plain at one address, and with TLS,
// by a certificate that nobody has signed, at another.
func serveWeb(arg string) error {
	plain, secure, _ := strings.Cut(arg, " ")
	saw := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := sawRequest{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Authorization: r.Header.Get("Authorization")}
		if r.TLS != nil {
			s.TLS, s.Certificates = true, len(r.TLS.PeerCertificates)
		}
		_ = json.NewEncoder(w).Encode(s) // the client sees that it is missing
	})
	l, err := net.Listen("tcp", plain)
	if err != nil {
		return err
	}
	with := httptest.NewUnstartedServer(saw)
	_ = with.Listener.Close() // the one of the library's choice
	if with.Listener, err = net.Listen("tcp", secure); err != nil {
		return err
	}
	with.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert}
	with.StartTLS()
	fmt.Println("listening on", l.Addr(), "and", with.Listener.Addr())
	return http.Serve(l, saw) //nolint:gosec // a test's server
}

// testWeb reaches a pod's ports by the proxies of pods, of services and by two forwarded ports at
// once. The pod's server sees neither the client's token nor a certificate of the API server, whose
// proxies believe whatever certificate it has.
func testWeb(t *testing.T, c *cluster) {
	if !netnsHere(t) {
		t.Skip("SKIPPED: without network namespaces a pod has a loopback address, which no proxy leads to")
	}
	plain, secure := await.FreePort(t), await.FreePort(t)
	c.roleInPodWith(t, "web", fmt.Sprintf(`,"ports":[{"containerPort":%d},{"containerPort":%d}]`, plain, secure), "",
		fmt.Sprintf("web-server :%d :%d", plain, secure))
	c.mustKubectl(t, "", "label", "pod", "web", "app=web")
	c.mustKubectl(t, "", "expose", "pod", "web", "--port=80", fmt.Sprintf("--target-port=%d", plain))
	c.mustKubectl(t, "", "expose", "pod", "web", "--name=web-tls", "--port=443", fmt.Sprintf("--target-port=%d", secure))
	c.mustKubectl(t, "", "create", "serviceaccount", "visitor")
	c.mustKubectl(t, "", "create", "clusterrolebinding", "visitor", "--clusterrole=cluster-admin", "--serviceaccount=default:visitor")
	visitor := rest.AnonymousClientConfig(c.rest)
	visitor.BearerToken = strings.TrimSpace(c.mustKubectl(t, "", "create", "token", "visitor"))
	client, err := rest.HTTPClientFor(visitor)
	must(t, err)
	for path, want := range map[string]sawRequest{
		fmt.Sprintf("pods/web:%d", plain):        {},
		fmt.Sprintf("pods/https:web:%d", secure): {TLS: true},
		"services/web:80":                        {},
		"services/https:web-tls:443":             {TLS: true},
	} {
		for _, want.Method = range []string{http.MethodGet, http.MethodPost} {
			want.Path, want.Query = "/some/page", "a=b&c=d"
			eventually(t, path+" answers", func() error { // the slices of a new service come a moment later
				got, err := see(t, client, want.Method, visitor.Host+"/api/v1/namespaces/default/"+path+"/proxy/some/page?a=b&c=d")
				if err == nil && got != want {
					err = fmt.Errorf("the server saw %+v, want %+v", got, want)
				}
				return err
			})
		}
	}
	addrs := c.forwardTwo(t, "web", plain, secure)
	own := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // of this test
	defer own.CloseIdleConnections()
	for i, scheme := range []string{"http", "https"} {
		want := sawRequest{Method: http.MethodGet, Path: "/forwarded", TLS: i == 1}
		if got, err := see(t, own, http.MethodGet, scheme+"://"+addrs[i]+"/forwarded"); err != nil || got != want {
			t.Errorf("by a forwarded port the server saw %+v (%v), want %+v", got, err, want)
		}
	}
	c.mustKubectl(t, "", "delete", "service", "web", "web-tls")
}

// see makes a request of a web server and returns what that saw.
func see(t *testing.T, client *http.Client, method, url string) (sawRequest, error) {
	t.Helper()
	var saw sawRequest
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(""))
	if err != nil {
		return saw, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return saw, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, err := io.ReadAll(resp.Body)
		return saw, fmt.Errorf("%s: %s: %w", resp.Status, why, err)
	}
	return saw, json.NewDecoder(resp.Body).Decode(&saw)
}

// forwardTwo runs one kubectl port-forward of two ports of a pod until the test ends, and returns
// the local addresses.
func (c *cluster) forwardTwo(t *testing.T, pod string, first, second int) [2]string {
	t.Helper()
	cmd := c.startKubectl(t, "port-forward", pod, fmt.Sprintf(":%d", first), fmt.Sprintf(":%d", second))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var addrs [2]string
	told := bufio.NewScanner(out)
	for i, port := range []int{first, second} {
		addr := regexp.MustCompile(fmt.Sprintf(`(127\.0\.0\.1:\d+) -> %d`, port))
		for addrs[i] == "" {
			if !told.Scan() {
				t.Fatalf("kubectl has ended: %v", told.Err())
			}
			if m := addr.FindStringSubmatch(told.Text()); m != nil {
				addrs[i] = m[1]
			}
		}
	}
	return addrs
}
