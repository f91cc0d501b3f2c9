package kubelet

// Connections that are upgraded: the library dials for them, and waits for the answer
// without a bound of its own.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// answerTimeout bounds the time from the dial to the end of a kubelet's answer's header,
	// and podAnswerTimeout that of what runs in pods, which may start by need.
	answerTimeout    = 30 * time.Second
	podAnswerTimeout = 5 * time.Minute
	// maxAnswer bounds that header, in bytes.
	maxAnswer = http.DefaultMaxHeaderBytes
)

// secured has connections of dial do TLS by conf, for which each handshake has a time. The
// address's host is the server's name, unless conf has one.
func secured(dial DialFunc, conf *tls.Config, handshake time.Duration) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		own := conf.Clone()
		own.NextProtos = []string{"http/1.1"}
		if own.ServerName == "" {
			own.ServerName = host
		}
		ctx, cancel := context.WithTimeout(ctx, handshake)
		defer cancel()
		c := tls.Client(raw, own)
		if err := c.HandshakeContext(ctx); err != nil {
			_ = raw.Close() // the handshake's error is the news
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("TLS handshake with %s: %w", addr, err)
			}
			return nil, err
		}
		return c, nil
	}
}

// answered has connections of dial fail if the answer to what is asked first does not come
// within a time, and closes them if ctx is done before.
func answered(dial DialFunc, within time.Duration) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			_ = c.Close() // that error is the news
			return nil, err
		}
		return &awaitingConn{Conn: c, left: context.AfterFunc(ctx, func() { _ = c.Close() })}, nil
	}
}

// An awaitingConn awaits the header of an answer. One goroutine may read, one may write.
type awaitingConn struct {
	net.Conn
	left func() bool // stops the watch for the client's end

	// The reader owns the following.
	header []byte // so far
	ended  bool   // the header
}

// Read lifts the bounds at the end of a header that agrees to the upgrade. Any other answer
// is to end within them.
func (a *awaitingConn) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if a.ended {
		return n, err
	}
	before := a.header[max(0, len(a.header)-3):]
	a.header = append(a.header, p[:n]...)
	if endOfHeader(before, p[:n]) < 0 {
		if len(a.header) > maxAnswer {
			return 0, fmt.Errorf("the header of the answer is longer than %d bytes", maxAnswer)
		}
		return n, err
	}
	const version, code = len("HTTP/1.1"), " 101"
	agreed := len(a.header) >= version+len(code) && string(a.header[version:version+len(code)]) == code
	a.ended, a.header = true, nil
	if !agreed {
		return n, err
	}
	a.left()
	return n, errors.Join(err, a.SetDeadline(time.Time{}))
}

// Close implements net.Conn.
func (a *awaitingConn) Close() error {
	a.left()
	return a.Conn.Close()
}
