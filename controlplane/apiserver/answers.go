// Answers: a bound on what webhooks answer. client-go reads an answer whole.

package apiserver

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

// BoundAnswers wraps the transport of a client of webhooks: reading an answer that is longer
// than the question justifies fails.
func BoundAnswers(rt http.RoundTripper) http.RoundTripper { return answerBound{rt} }

type answerBound struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b answerBound) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		most := minAnswer + answerFactor*max(r.ContentLength, 0)
		answer.Body = &boundedBody{ReadCloser: answer.Body, most: most, left: most}
	}
	return answer, err
}

// A boundedBody fails once more than most bytes were read. The error of http.MaxBytesReader
// speaks of a request.
type boundedBody struct {
	io.ReadCloser
	most, left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", b.most)
	}
	return n, err
}
