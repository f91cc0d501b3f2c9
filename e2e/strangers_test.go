// What strangers do to the ports of the running programs: malformed handshakes and
// requests, certificates of nobody's, requests that are taken back, and more
// connections than there are places.

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/e2e/rogue"
)

// A door is a port that strangers come to.
type door struct {
	name    string
	dial    func(context.Context) (net.Conn, error)
	counts  []string // prefixes of the metrics of connections that were closed
	program string   // whose metrics these are
	log     string   // what is in the lines about them
	file    string   // that log
	path    string   // what a stranger asks for
	metrics func(*testing.T) map[string]float64
	away    bool // strangers are told that their connection is over (GOAWAY), and what they ask later is thrown away
	places  int  // how many strangers may be there; zero for what testCrowd is not for
}

func TestStrangers(t *testing.T) {
	t.Parallel()
	began, connect := time.Now(), strconv.Itoa(await.FreePort(t))
	f := startFront(t, "qmux", "--server-arg=--connect-port="+connect) // yamux tells of an end in the middle after a minute
	hub := startIdleHub(t, f)
	before := []int{f.pid(t, "server"), f.pid(t, "node-1")}
	doors := doorsOf(f, hub, connect)
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			d.testMalformed(t, f)
			d.testCertificates(t, f)
			d.testReset(t, f)
		})
	}
	for range 200 {
		rogue.Malformed()["no preface"](doors[0].connect(t), stranger())
	}
	for _, d := range doors {
		if d.places > 0 {
			t.Run("crowd at "+d.name, func(t *testing.T) { d.testCrowd(t, f) })
		}
	}
	most := 1 + int(time.Since(began)/time.Minute)
	for _, d := range doors {
		if lines := d.lines(t, d.log); lines < 1 || lines > most {
			t.Errorf("%s: %d lines in the log, not 1 to %d", d.name, lines, most)
		}
	}
	// HTTP/2's library tells of each connection by itself.
	if lines := doors[0].lines(t, "http2: server"); lines < 1 || lines > 32*most {
		t.Errorf("%d lines of a library about connections that broke HTTP/2's rules", lines)
	}
	// Of what libraries say there is one line a minute for each text, and 32 texts at most.
	if lines := doors[0].lines(t, "Unhandled Error"); lines > 32*most {
		t.Errorf("%d lines about requests that were taken back", lines)
	}
	if after := []int{f.pid(t, "server"), f.pid(t, "node-1")}; before[0] != after[0] || before[1] != after[1] {
		t.Errorf("processes %v are %v now", before, after)
	}
	f.served(t)
}

// doorsOf are the ports of a server with its node, and that of a hub's health.
func doorsOf(f *front, hub *besideHub, connect string) []*door {
	tcp := func(host, port string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		}
	}
	doors := []*door{
		{
			name: "api", dial: tcp("127.0.0.1", portOf(f.cluster)), program: "server", log: `msg="connection closed" server=api`, path: "/api/v1/nodes", places: 2048, away: true,
			counts: []string{"hawser_api_connections_closed_total", "hawser_port_connections_closed_total"},
		},
		{
			name: "connect", dial: tcp("127.0.0.1", connect), program: "server", log: `msg="connection closed without a usable request" front=tls`, path: "/",
			counts: []string{"hawser_connect_connections_closed_total"},
		},
		{
			name: "kubelet", program: "node-1", log: `msg="connection closed" server=kubelet`, path: "/pods",
			dial:   func(context.Context) (net.Conn, error) { return f.connect(10250) },
			counts: []string{"hawser_kubelet_connections_closed_total"},
		},
		{
			name: "health", program: "hub", log: `msg="connection closed" server=health`, path: "/metrics", places: 256, away: true,
			dial:   tcp(hubHost, strconv.Itoa(hub.health)),
			counts: []string{"hawser_health_connections_closed_total"},
		},
	}
	for _, d := range doors {
		d.metrics = func(t *testing.T) map[string]float64 { return f.metricsAt(t, metricsOf(d.program)) }
		d.file = filepath.Join(f.dir, "server.log")
		switch d.program {
		case "node-1":
			d.file = filepath.Join(f.dir, "nodes", d.program, "agent.log")
		case "hub":
			d.metrics, d.file = hub.metrics, hub.data+".log"
		}
	}
	return doors
}

// startIdleHub starts a hub beside the server of f. It leaves the Nodes to that.
func startIdleHub(t *testing.T, f *front) *besideHub {
	t.Helper()
	h := newBeside(t, f.cluster, "")
	h.grant(t)
	h.start(t, "--controllers=hawser-load-balancer-controller")
	return h
}

// metrics are those of the hub, read by the cluster's administrator.
func (h *besideHub) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	conf := rest.CopyConfig(h.rest)
	conf.Host = fmt.Sprintf("https://%s:%d", hubHost, h.health)
	conf.Insecure, conf.CAFile, conf.CAData = true, "", nil
	client, err := kubernetes.NewForConfig(conf)
	must(t, err)
	return metricsBy(t, client.Discovery().RESTClient(), "/metrics")
}

// lines is how many lines of the whole log of the door's program contain a text.
func (d *door) lines(t *testing.T, text string) int {
	t.Helper()
	log, err := os.ReadFile(d.file)
	must(t, err)
	return strings.Count(string(log), text)
}

// served wants the API and, through the tunnel, the kubelet API to answer those whom
// they know.
func (f *front) served(t *testing.T) {
	t.Helper()
	f.mustKubectl(t, "", "get", "nodes")
	f.mustKubectl(t, "", "get", "--raw", "/api/v1/nodes/node-1/proxy/healthz")
}

// stranger trusts whoever answers.
func stranger() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// showing is a stranger who shows a certificate, whichever the server asks for.
func showing(cert *tls.Certificate) *tls.Config {
	conf := stranger()
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	return conf
}

// closed is how many connections to the door were closed without having been of use.
func (d *door) closed(t *testing.T) (n float64) {
	t.Helper()
	for name, v := range d.metrics(t) {
		for _, prefix := range d.counts {
			if strings.HasPrefix(name, prefix) {
				n += v
			}
		}
	}
	return n
}

// rises waits until more connections were closed than from.
func (d *door) rises(t *testing.T, from float64) {
	t.Helper()
	eventually(t, "the connection is counted", func() error {
		if n := d.closed(t); n <= from {
			return fmt.Errorf("%v were closed, and before it %v", n, from)
		}
		return nil
	})
}

// connect opens a connection with a deadline.
func (d *door) connect(t *testing.T) net.Conn {
	t.Helper()
	c, err := d.dial(t.Context())
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (d *door) testMalformed(t *testing.T, f *front) {
	for name, attack := range rogue.Malformed() {
		t.Run(name, func(t *testing.T) {
			from := d.closed(t)
			c := d.connect(t)
			attack(c, stranger())
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is open")
			}
			d.rises(t, from)
		})
	}
	f.served(t)
}

// testCertificates shows certificates that say much and are signed by nobody whom the
// server knows.
func (d *door) testCertificates(t *testing.T, f *front) {
	other := pkitest.New(t, "hawser-clients")
	admin := pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}
	as := func(change func(*x509.Certificate)) *tls.Certificate {
		tmpl := &x509.Certificate{
			Subject: admin, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		change(tmpl)
		return other.Issue(t, tmpl)
	}
	broken := as(func(*x509.Certificate) {})
	broken.Certificate = [][]byte{append([]byte("\x30\x82\xff\xff"), make([]byte, 1<<10)...)}
	for name, cert := range map[string]*tls.Certificate{
		"of another authority": as(func(*x509.Certificate) {}),
		"with many names": as(func(c *x509.Certificate) {
			for i := range 2000 {
				c.DNSNames = append(c.DNSNames, fmt.Sprintf("name-%d.example.com", i))
			}
		}),
		"of many groups": as(func(c *x509.Certificate) {
			c.Subject.Organization = nil
			for i := range 2000 {
				c.Subject.Organization = append(c.Subject.Organization, fmt.Sprintf("system:group-%d", i))
			}
		}),
		"that is none": broken,
		"of nobody's":  new(tls.Certificate), // it shows none
	} {
		t.Run(name, func(t *testing.T) {
			from := d.closed(t)
			if status := d.ask(t, showing(cert)); status != 0 && status != http.StatusUnauthorized && status != http.StatusForbidden {
				t.Errorf("whoever shows a certificate %s gets %d", name, status)
			}
			d.rises(t, from)
		})
	}
	f.served(t)
}

// ask makes a request and hangs up. The status is 0 if none comes.
func (d *door) ask(t *testing.T, conf *tls.Config) (status int) {
	t.Helper()
	c := tls.Client(d.connect(t), conf)
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", d.path); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	must(t, resp.Body.Close())
	return resp.StatusCode
}

// testReset takes requests back, as a stranger and, at the API, as an administrator.
func (d *door) testReset(t *testing.T, f *front) {
	const many = 100_000
	users := map[string]*tls.Config{"stranger": stranger()}
	if d.name == "api" {
		known, err := rest.TLSConfigFor(f.rest)
		must(t, err)
		users["administrator"] = known
	}
	for name, conf := range users {
		t.Run("reset by a "+name, func(t *testing.T) {
			from := d.closed(t)
			if rogue.Reset(d.connect(t), conf, d.path, many) && (!d.away || name != "stranger") {
				t.Errorf("%d requests were taken back over one connection", many)
			}
			d.rises(t, from)
		})
	}
	f.served(t)
}

// testCrowd comes with more connections than there are places, each of which begins a
// handshake. Whoever is known is served beside them.
func (d *door) testCrowd(t *testing.T, f *front) {
	const crowd = 3000
	hello, err := rogue.Hello(t.Context())
	must(t, err)
	from := d.closed(t)
	for i := range crowd {
		_, _ = d.connect(t).Write(hello) // it may be closed already
		if i%1000 == 999 {
			f.served(t)
		}
	}
	d.rises(t, from+float64(crowd-d.places-1))
}
