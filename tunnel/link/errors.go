// Errors: why a link is over, or never came to be.

package link

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// ErrProtocol is wrapped by every error about a peer that breaks the protocol.
var ErrProtocol = errors.New("peer breaks the link protocol")

// An Error ends a link for good. It unwraps to its Code, to syscall.ECONNRESET
// and to the cause.
type Error struct {
	// Code is Dead if the peer fell silent and did not come back, Lost if the
	// transport broke and none took its place or the peer has forgotten the
	// link, and the peer's own code if it refused to resume.
	Code tunnel.Code
	// Text says what happened, for people.
	Text string

	cause error
}

// Error says what happened.
func (e *Error) Error() string {
	if e.cause == nil {
		return "link: " + e.Text
	}
	return "link: " + e.Text + ": " + e.cause.Error()
}

// Unwrap gives the code, the system's word for a broken connection, and the
// cause if there is one.
func (e *Error) Unwrap() []error {
	errs := []error{e.Code, syscall.ECONNRESET}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// Timeout and Temporary make an Error a net.Error. It is never a timeout in the
// sense of a deadline, so that nobody tries the same link again.
func (e *Error) Timeout() bool { return false }

// Temporary is the code's.
func (e *Error) Temporary() bool { return e.Code.Temporary() }

// silence is why a transport is given up that still takes bytes.
func silence(d time.Duration) error {
	return fmt.Errorf("%w: nothing heard for %v", tunnel.Dead, d.Round(time.Millisecond))
}

// deafness is why a transport is given up at the peer's word.
func deafness() error { return fmt.Errorf("%w: it hears nothing", tunnel.Dead) }

// expired is the end of a link whose transport was lost through cause and never
// replaced.
func expired(cause error) *Error {
	code := tunnel.Lost
	if errors.Is(cause, tunnel.Dead) {
		code = tunnel.Dead
	}
	return &Error{Code: code, Text: "detach window is over", cause: cause}
}

// Why a resumption is refused, for this end's log only: a stranger learns no more
// than that there is nothing for it.
var (
	errForeign = errors.New("the link belongs to another identity")
	errSecret  = errors.New("the secret is wrong or was used before")
)

// unknown is the refusal of a resumption; cause may be nil.
func unknown(cause error) *Error {
	return &Error{Code: tunnel.Lost, Text: "no such link", cause: cause}
}

// refused is the refusal of a resumption that is not allowed: what the peer is told is
// its Code and Text.
func refused(err error) *Error {
	var code tunnel.Code
	if errors.As(err, &code) {
		return &Error{Code: code, Text: err.Error()}
	}
	return &Error{Code: tunnel.Denied, Text: "link may not go on", cause: err}
}

func late() *Error { return &Error{Code: tunnel.Replaced, Text: "a later attempt came first"} }

// suspicious says whether a refused resumption is one that no honest peer makes.
func suspicious(err error) bool {
	return errors.Is(err, tunnel.Denied) || errors.Is(err, tunnel.Revoked) || errors.Is(err, errForeign) || errors.Is(err, errSecret)
}

// nonsense is the end of a link whose peer breaks the protocol.
func nonsense(err error) *Error {
	return &Error{Code: tunnel.Internal, Text: "peer cannot be trusted", cause: err}
}

// refusal is what the server answered, as an error. It wraps a *tunnel.Goodbye if the
// server has refused this peer; that it does not know the link, or has another
// transport for it, says nothing of that.
func refusal(m message) *Error {
	e := &Error{Code: m.code, Text: "refused by the server"}
	switch m.code {
	case tunnel.Denied, tunnel.Revoked, tunnel.Busy:
		e.cause = &tunnel.Goodbye{Code: m.code, Text: m.text}
	default:
		e.Text += ": " + m.text
	}
	return e
}

// final says whether there is no point in another attempt to resume.
func final(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return errors.Is(err, ErrProtocol)
	}
	switch e.Code {
	case tunnel.Busy, tunnel.Draining, tunnel.Replaced:
		return false
	default:
		return true
	}
}
