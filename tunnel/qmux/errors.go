// Errors: why a session has ended, or was never made.

package qmux

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// The error codes of RFC 9000, 20.1, that this package sends. The application's code, in a
// CONNECTION_CLOSE of type 0x1d, is the ErrorCode of a tunnel.Goodbye.
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

	// streamCanceled is the code of every STOP_SENDING, and of every RESET_STREAM that
	// answers none.
	streamCanceled = 0x00
)

// A violation is a peer's violation of RFC 9000, of the QMux draft or of this package's
// extension. It ends the session: its scope is the connection (RFC 9000, 11.1).
type violation struct {
	// Code is one of RFC 9000, section 20.1.
	Code uint64
	// Text describes the violation.
	Text string
}

// Error describes the violation.
func (e *violation) Error() string {
	return fmt.Sprintf("peer violates the protocol: error %#x: %s", e.Code, e.Text)
}

// protocolError makes a violation of what the peer has sent.
func protocolError(code uint64, format string, args ...any) error {
	return &violation{Code: code, Text: fmt.Sprintf(format, args...)}
}

// A sessionError is why a session has ended, or was refused; its scope is the session. It unwraps
// to its Code, to syscall.ECONNRESET and to the cause.
type sessionError struct {
	// Code is Dead if the peer fell silent and did not return, Lost if the connections
	// broke and were not replaced in time or the peer has forgotten the session,
	// Internal if the peer violated the protocol, and the peer's own code if it refused.
	Code tunnel.Code
	// Text says what happened, for people.
	Text string

	retry  time.Duration // when to try again; zero: the peer did not say
	server string        // that has refused a joining; empty if it did not send its name
	cause  error
}

// Error says what happened.
func (e *sessionError) Error() string {
	if e.cause == nil {
		return e.Text
	}
	return e.Text + ": " + e.cause.Error()
}

// Unwrap returns the code, ECONNRESET, and the cause if there is one.
func (e *sessionError) Unwrap() []error {
	errs := []error{e.Code, syscall.ECONNRESET}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// sessionEnded is the end of a session whose last connection was lost because of cause and
// was not replaced in time.
func sessionEnded(text string, cause error) error {
	code := tunnel.Lost
	if errors.Is(cause, tunnel.Dead) {
		code = tunnel.Dead
	}
	return &sessionError{Code: code, Text: text, cause: cause}
}

// protocolViolation is the end of a session whose peer violates the protocol.
func protocolViolation(err error) error {
	return &sessionError{Code: tunnel.Internal, Text: "peer violated the protocol", cause: err}
}

// silentError is why a connection is given up on which nothing was received.
func silentError(d time.Duration) error {
	return fmt.Errorf("%w: nothing heard for %v", tunnel.Dead, d.Round(time.Millisecond))
}

// Reasons to refuse a joining that only this end's log has: the peer learns no more than
// that there is no such session.
var (
	errForeign = errors.New("the session belongs to another identity")
	errSecret  = errors.New("the secret is wrong or was used before")
)

// noSession refuses a joining; cause may be nil.
func noSession(cause error) *sessionError {
	return &sessionError{Code: tunnel.Lost, Text: "no such session", cause: cause}
}

// noSessionElsewhere is that a connection has reached a server other than the session's, which
// has no such session.
func noSessionElsewhere(server, own string) *sessionError {
	return &sessionError{Code: tunnel.Lost, Text: fmt.Sprintf("server %q was reached in place of %q: no such session", server, own), server: server}
}

// superseded refuses an attempt that is older than one that has succeeded.
func superseded() *sessionError {
	return &sessionError{Code: tunnel.Replaced, Text: "a later attempt came first"}
}

// refused refuses a joining that the application does not allow. The peer receives its Code
// and Text.
func refused(err error) *sessionError {
	if code, ok := errors.AsType[tunnel.Code](err); ok {
		retry, _ := tunnel.RetryAfter(err)
		return &sessionError{Code: code, Text: err.Error(), retry: retry}
	}
	return &sessionError{Code: tunnel.Denied, Text: "session may not be resumed", cause: err}
}

// closedBy makes an error of a CONNECTION_CLOSE. It wraps a *tunnel.Goodbye if the peer does
// not admit this end, or is busy.
func closedBy(f frame) error {
	text := string(f.data[:min(len(f.data), maxReason)])
	if f.kind == frameClose && f.value != errNone {
		return protocolViolation(fmt.Errorf("peer closed the session: error %#x: %s", f.value, text))
	}
	if f.value == 0 {
		return fmt.Errorf("%w: peer closed the session", tunnel.Lost)
	}
	bye := tunnel.GoodbyeBy(f.value, text)
	e := &sessionError{Code: cmp.Or(bye.Code, tunnel.Internal), Text: "refused by the server"}
	switch e.Code {
	case tunnel.Denied, tunnel.Revoked, tunnel.Busy:
		e.cause = bye
	default:
		e.Text += ": " + text
	}
	return e
}

// permanent says whether another attempt would fail in the same way.
func permanent(err error) bool {
	if e, ok := errors.AsType[*sessionError](err); ok {
		return e.Code != tunnel.Busy && e.Code != tunnel.Draining && e.Code != tunnel.Replaced
	}
	return errors.As(err, new(*violation))
}
