// Errors: why a session is over, or never came to be.

package qmux

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// The error codes of RFC 9000, 20.1, that this package sends, and those of what runs
// on it: of a CONNECTION_CLOSE (0x1d) it is that of a tunnel.Goodbye.
const (
	errNone          = 0x00
	errInternal      = 0x01
	errFlowControl   = 0x03
	errStreamLimit   = 0x04
	errStreamState   = 0x05
	errFinalSize     = 0x06
	errFrameEncoding = 0x07
	errParameter     = 0x08
	errProtocol      = 0x0a

	// streamCanceled is the code of every RESET_STREAM and STOP_SENDING: the stream
	// was given up, or nobody reads it.
	streamCanceled = 0x00
)

// A ProtocolError is what an end did that RFC 9000, the QMux draft or this package's
// extension of it does not allow. It ends the session: its scope is the connection
// (RFC 9000, 11.1).
type ProtocolError struct {
	// Code is RFC 9000's, section 20.1.
	Code uint64
	// Text says what was wrong.
	Text string
	// Remote says that the peer found it in what this end had sent.
	Remote bool
}

// Error says what was wrong, and who found it.
func (e *ProtocolError) Error() string {
	if e.Remote {
		return fmt.Sprintf("peer closed the session: error %#x: %s", e.Code, e.Text)
	}
	return fmt.Sprintf("peer breaks the protocol: error %#x: %s", e.Code, e.Text)
}

// broken makes a ProtocolError of what the peer sent.
func broken(code uint64, format string, args ...any) error {
	return &ProtocolError{Code: code, Text: fmt.Sprintf(format, args...)}
}

// An Error ends a session for good; its scope is the session. It unwraps to its Code,
// to syscall.ECONNRESET and to the cause.
type Error struct {
	// Code is Dead if the peer fell silent and did not come back, Lost if the
	// connections broke and none took their place or the peer has forgotten the
	// session, Internal if the peer broke the protocol, and the peer's own code if it
	// refused.
	Code tunnel.Code
	// Text says what happened, for people.
	Text string

	retry time.Duration // when another attempt is welcome; zero: not said
	cause error
}

// Error says what happened.
func (e *Error) Error() string {
	if e.cause == nil {
		return e.Text
	}
	return e.Text + ": " + e.cause.Error()
}

// Unwrap gives the code, the system's word for a broken connection, and the cause if
// there is one.
func (e *Error) Unwrap() []error {
	errs := []error{e.Code, syscall.ECONNRESET}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// ended is the end of a session whose last connection was lost through cause, and which
// another did not join in time.
func ended(text string, cause error) error {
	code := tunnel.Lost
	if errors.Is(cause, tunnel.Dead) {
		code = tunnel.Dead
	}
	return &Error{Code: code, Text: text, cause: cause}
}

// nonsense is the end of a session whose peer breaks the protocol: no other connection
// would mend that.
func nonsense(err error) error {
	return &Error{Code: tunnel.Internal, Text: "peer cannot be trusted", cause: err}
}

// silence is why a connection is given up that still takes bytes.
func silence(d time.Duration) error {
	return fmt.Errorf("%w: nothing heard for %v", tunnel.Dead, d.Round(time.Millisecond))
}

// Why a further connection is refused, for this end's log only: a stranger learns no
// more than that there is nothing for it.
var (
	errForeign = errors.New("the session belongs to another identity")
	errSecret  = errors.New("the secret is wrong or was used before")
)

// unknown is the refusal of a further connection; cause may be nil.
func unknown(cause error) *Error {
	return &Error{Code: tunnel.Lost, Text: "no such session", cause: cause}
}

// late is the refusal of an attempt that a later one has overtaken.
func late() *Error { return &Error{Code: tunnel.Replaced, Text: "a later attempt came first"} }

// refused is the refusal of a further connection that is not allowed: what the peer is
// told is its Code and Text.
func refused(err error) *Error {
	var code tunnel.Code
	if errors.As(err, &code) {
		retry, _ := tunnel.RetryAfter(err)
		return &Error{Code: code, Text: err.Error(), retry: retry}
	}
	return &Error{Code: tunnel.Denied, Text: "session may not go on", cause: err}
}

// closedBy is what a CONNECTION_CLOSE says, as an error. It wraps a *tunnel.Goodbye if
// the peer has refused this end: that it does not know the session, or has another
// connection for it, says nothing of that.
func closedBy(f frame) error {
	text := string(f.data[:min(len(f.data), maxReason)])
	if f.kind == frameClose && f.value != errNone {
		return nonsense(&ProtocolError{Code: f.value, Text: text, Remote: true})
	}
	if f.value == 0 {
		return fmt.Errorf("%w: peer closed the session", tunnel.Lost)
	}
	bye := tunnel.GoodbyeBy(f.value, text)
	e := &Error{Code: cmp.Or(bye.Code, tunnel.Internal), Text: "refused by the server"}
	switch e.Code {
	case tunnel.Denied, tunnel.Revoked, tunnel.Busy:
		e.cause = bye
	default:
		e.Text += ": " + text
	}
	return e
}

// final says whether there is no point in another attempt.
func final(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		var p *ProtocolError
		return errors.As(err, &p)
	}
	switch e.Code {
	case tunnel.Busy, tunnel.Draining, tunnel.Replaced:
		return false
	default:
		return true
	}
}
