package kubelet

// Tests of servers that take a connection, or a request for an upgrade, and say nothing.

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// silent is a server that reads and never answers. With a configuration it does its part of
// a TLS handshake first.
func silent(conf *tls.Config) DialFunc {
	return func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		var in io.ReadCloser = far
		if conf != nil {
			in = tls.Server(far, conf)
		}
		go func() {
			_, _ = io.Copy(io.Discard, in) // until the near end is closed
			_ = in.Close()
		}()
		return near, nil
	}
}

// TestUpgradeOfSilentServer: nobody waits for an answer for ever, nor after the client has
// left.
func TestUpgradeOfSilentServer(t *testing.T) {
	keys := newPKI(t)
	serving := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{keys.issue("system:node:node-1", "node-1")}}
	valid := time.Now() // the bubble's clock is not
	requests := map[string]struct {
		resource, name string
		options        runtime.Object
		within         time.Duration
	}{
		"pod":          {"pods/proxy", "web:8080", &corev1.PodProxyOptions{Path: "/"}, podAnswerTimeout},
		"pod, TLS":     {"pods/proxy", "https:web:8080", &corev1.PodProxyOptions{Path: "/"}, podAnswerTimeout},
		"kubelet":      {"nodes/proxy", "node-1", &corev1.NodeProxyOptions{Path: "/"}, answerTimeout},
		"port-forward": {"pods/portforward", "web", &corev1.PodPortForwardOptions{Ports: []int32{80}}, answerTimeout},
		"exec":         {"pods/exec", "web", &corev1.PodExecOptions{Command: []string{"x"}, Stdout: true}, answerTimeout},
	}
	for name, r := range requests {
		for what, conf := range map[string]*tls.Config{"never": nil, "after the handshake": serving} {
			for who, patience := range map[string]time.Duration{"stays": 0, "leaves": time.Second} {
				if name == "pod" && conf != nil {
					continue // no TLS is done
				}
				t.Run(name+"/silent "+what+"/client "+who, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						dial := silent(conf)
						connecter, ok := Storages(Options{
							Pods: pods, Nodes: nodes, Dial: dial, DialEarly: dial, DialTimeout: 5 * time.Second,
							TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: keys.Pool(), Time: func() time.Time { return valid }},
						})[r.resource].(rest.Connecter)
						if !ok {
							t.Fatal("connects to nothing")
						}
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						told := &failing{}
						h, err := connecter.Connect(ctx, r.name, r.options, told)
						if err != nil {
							t.Fatal(err)
						}
						req := httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(ctx)
						req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}}
						began := time.Now()
						if patience > 0 {
							defer time.AfterFunc(patience, leave).Stop()
						}
						h.ServeHTTP(httptest.NewRecorder(), req)
						if told.told == nil || strings.Contains(told.told.Error(), "x509") {
							t.Errorf("failed by %v", told.told)
						}
						if took := time.Since(began); took > r.within || patience > 0 && took > patience {
							t.Errorf("ended after %v with %v", took, told.told)
						}
					})
				})
			}
		}
	}
}
