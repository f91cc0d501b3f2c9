// Package answers bounds what is read of the answers of servers that are not the cluster's
// own, such as webhooks, issuers of tokens and extension servers: libraries read an answer
// whole.
package answers

import (
	"fmt"
	"io"
	"net/http"
)

// An answer may have minAnswer bytes, and answerFactor more for each byte of the question: a
// conversion webhook is sent all objects of a list, and answers with as many.
const (
	minAnswer    = 16 << 20
	answerFactor = 4
)

// Bound wraps the transport of a client: reading an answer that is longer than the question
// justifies fails.
func Bound(rt http.RoundTripper) http.RoundTripper { return bound{rt} }

type bound struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = Body(answer.Body, minAnswer+answerFactor*max(r.ContentLength, 0))
	}
	return answer, err
}

// Body is b, whose Read fails once more than most bytes were read.
func Body(b io.ReadCloser, most int64) io.ReadCloser {
	return &body{ReadCloser: b, most: most, left: most}
}

// The error of http.MaxBytesReader speaks of a request.
type body struct {
	io.ReadCloser
	most, left int64
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", b.most)
	}
	return n, err
}
