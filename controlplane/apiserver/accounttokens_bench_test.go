// What tokens of service accounts cost the API server, over HTTP and TLS.

package apiserver_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// BenchmarkAccountTokens makes tokens as a node does, and has them reviewed: each time a
// token that the server has not seen, and the same one.
func BenchmarkAccountTokens(b *testing.B) {
	s := startBelieving(b)
	_, pod := s.robot(b, "robot")
	of := func(name string, groups string) *kubernetes.Clientset {
		c := rest.CopyConfig(as(s.config, name, groups))
		c.QPS = -1
		return must(kubernetes.NewForConfig(c))(b)
	}
	node, reviewer := of("system:node:node-of-robot", "system:nodes"), of("someone", "testers")
	request := func() *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: boundTo("Pod", pod.Name, pod)}
	}
	create := func() string {
		r := must(node.CoreV1().ServiceAccounts("default").CreateToken(b.Context(), "robot", request(), metav1.CreateOptions{}))(b)
		return r.Status.Token
	}
	review := func(token string) {
		r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		if got := must(reviewer.AuthenticationV1().TokenReviews().Create(b.Context(), r, metav1.CreateOptions{}))(b); !got.Status.Authenticated {
			b.Fatal(got.Status.Error)
		}
	}
	// The least that a request costs both, client and server, in this process.
	b.Run("get", func(b *testing.B) {
		perRequest(b, func() {
			_ = must(reviewer.CoreV1().ServiceAccounts("default").Get(b.Context(), "robot", metav1.GetOptions{}))(b)
		})
	})
	b.Run("request", func(b *testing.B) { perRequest(b, func() { create() }) })
	seen := create()
	b.Run("review/seen", func(b *testing.B) { perRequest(b, func() { review(seen) }) })
	b.Run("review/new", func(b *testing.B) {
		tokens := make([]string, b.N)
		for i := range tokens {
			tokens[i] = create()
		}
		var next atomic.Int64
		b.ResetTimer()
		perRequest(b, func() { review(tokens[next.Add(1)-1]) })
	})
}

// perRequest does something b.N times and tells what processor time one takes.
func perRequest(b *testing.B, do func()) {
	before := cpu(b)
	for range b.N {
		do()
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
