// Errors: what QUIC's mean to a session.

package overquic

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// The codes that go with a CONNECTION_CLOSE: a plain end, or codeGoodbye with a
// tunnel.Goodbye's ErrorCode: why the peer ended the session.
const (
	codeClosed  quic.ApplicationErrorCode = 0
	codeGoodbye quic.ApplicationErrorCode = 1 << 56
)

// maxReason bounds the text that goes with one of those, in bytes, so that it fits into
// the one packet that there is for it.
const maxReason = 512

// A gone is why there is no session any more. It unwraps to its code, to
// syscall.ECONNRESET and to the cause.
type gone struct {
	code  tunnel.Code // Dead if the peer fell silent, or Lost
	text  string
	cause error
}

func (g *gone) Error() string {
	text := g.code.String() + ": " + g.text
	if g.cause != nil {
		text += ": " + g.cause.Error()
	}
	return text
}

func (g *gone) Unwrap() []error {
	errs := []error{g.code, syscall.ECONNRESET}
	if g.cause != nil {
		errs = append(errs, g.cause)
	}
	return errs
}

// Timeout and Temporary make it a net.Error. It is never a timeout in the sense of a
// deadline, so that nobody tries the same stream again.
func (g *gone) Timeout() bool { return false }

// Temporary is the code's.
func (g *gone) Temporary() bool { return g.code.Temporary() }

// lost makes a gone of the connection's error. What others than the four below unwrap to
// would mislead: a session that was cut is no deadline, and not closed by its own end.
func lost(err error) error {
	var (
		app       *quic.ApplicationError
		transport *quic.TransportError
		idle      *quic.IdleTimeoutError
	)
	switch {
	case errors.As(err, &app) && goodbye(app) != nil:
		return &gone{code: tunnel.Lost, text: "peer closed the connection", cause: goodbye(app)}
	case errors.As(err, &app) && app.Remote:
		return &gone{code: tunnel.Lost, text: "peer closed the connection: " + clip(app.ErrorMessage)}
	case errors.As(err, &transport):
		return &gone{code: tunnel.Lost, text: "connection broke", cause: alert(err)}
	case errors.As(err, &idle):
		return &gone{code: tunnel.Dead, text: err.Error()}
	default:
		return &gone{code: tunnel.Lost, text: err.Error()}
	}
}

// goodbye is what the peer has said with its CONNECTION_CLOSE; nil if it said nothing.
func goodbye(app *quic.ApplicationError) *tunnel.Goodbye {
	if !app.Remote || app.ErrorCode/codeGoodbye != 1 || app.ErrorCode&0xff == 0 {
		return nil
	}
	return tunnel.GoodbyeBy(uint64(app.ErrorCode-codeGoodbye), clip(app.ErrorMessage))
}

func clip(text string) string { return text[:min(len(text), maxReason)] }

// alert makes of an alert of the peer's TLS what it is over TCP, and of a peer's goodbye
// what it said.
func alert(err error) error {
	var (
		e   *quic.TransportError
		app *quic.ApplicationError
	)
	if errors.As(err, &app) && goodbye(app) != nil {
		return goodbye(app)
	}
	if errors.As(err, &e) && e.Remote && e.ErrorCode.IsCryptoError() {
		return &net.OpError{Op: "remote error", Err: tls.AlertError(e.ErrorCode & 0xff)} // RFC 9001, 4.8
	}
	return err
}
