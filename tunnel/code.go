// Codes: why a dial failed or a session ended, as a number that is sent to the peer.

package tunnel

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Code says why a dial failed or a session ended. Codes are errors: errors.Is(err,
// tunnel.Refused) works on the errors of Connect. They are sent to peers, so values are never
// reused.
type Code uint8

const (
	// NoNode: the node is not connected, or no node has the address.
	NoNode Code = 1
	// Parked: the node's session has no connection now, and waits for one.
	Parked Code = 2
	// Refused: the target refuses the connection.
	Refused Code = 3
	// Unreachable: there is no route from the node to the target.
	Unreachable Code = 4
	// Timeout: no answer in time.
	Timeout Code = 5
	// Denied: a policy forbids it.
	Denied Code = 6
	// Draining: the end is about to stop, and accepts nothing new.
	Draining Code = 7
	// Ambiguous: more than one node claims the address.
	Ambiguous Code = 8
	// Internal: a fault in the tunnel itself.
	Internal Code = 9
	// Canceled: the caller has canceled the dial.
	Canceled Code = 10
	// Unresolved: the target's name has no address.
	Unresolved Code = 11
	// Invalid: the address or the frame is malformed.
	Invalid Code = 12
	// Replaced: a newer session of the same node has replaced this one.
	Replaced Code = 13
	// Lost: the session ended during the dial.
	Lost Code = 14
	// Busy: a limit was reached.
	Busy Code = 15
	// Dead: the peer was silent for too long.
	Dead Code = 16
	// Revoked: the peer's identity is not admitted any more.
	Revoked Code = 17
)

// codes is indexed by Code: the code's name, its text, and the standard library's error for
// it, if there is one. It is never changed.
var codes = [...]struct {
	name, text string
	std        error
}{
	0:           {"ok", "", nil},
	NoNode:      {"no_node", "no such node is connected", nil},
	Parked:      {"parked", "node is reconnecting", nil},
	Refused:     {"refused", "connection refused", syscall.ECONNREFUSED},
	Unreachable: {"unreachable", "target is unreachable", syscall.EHOSTUNREACH},
	Timeout:     {"timeout", "timed out", os.ErrDeadlineExceeded},
	Denied:      {"denied", "denied by policy", nil},
	Draining:    {"draining", "draining", nil},
	Ambiguous:   {"ambiguous", "address belongs to more than one node", nil},
	Internal:    {"internal", "internal error", nil},
	Canceled:    {"canceled", "canceled", context.Canceled},
	Unresolved:  {"unresolved", "name does not resolve", nil},
	Invalid:     {"invalid", "invalid request", nil},
	Replaced:    {"replaced", "replaced by a newer session", nil},
	Lost:        {"lost", "session lost", syscall.ECONNRESET},
	Busy:        {"busy", "too many requests", nil},
	Dead:        {"dead", "peer is silent", syscall.ECONNRESET},
	Revoked:     {"revoked", "identity is not admitted", nil},
}

// Name is one word of a closed list, for programs: values of metric labels, results in logs.
// It is "ok" for 0, which is success, and "other" for codes of newer peers.
func (c Code) Name() string {
	if int(c) < len(codes) {
		return codes[c].name
	}
	return "other"
}

// String is the code's text in English.
func (c Code) String() string {
	if 0 < c && int(c) < len(codes) {
		return codes[c].text
	}
	return "code " + strconv.Itoa(int(c))
}

// Error makes a Code an error.
func (c Code) Error() string { return c.String() }

// Timeout and Temporary make a Code a net.Error.
func (c Code) Timeout() bool { return c == Timeout || c == Dead }

// Temporary says whether the same dial may succeed later.
func (c Code) Temporary() bool { return c.Away() || c == Timeout || c == Busy }

// Away says that the dial did not reach the node: this end has no working session with it,
// and another server may have one.
func (c Code) Away() bool {
	return slices.Contains([]Code{NoNode, Parked, Draining, Replaced, Lost, Dead}, c)
}

// A DialError is a dial that failed at either end. It unwraps to its Code and to the standard
// library's error for it, if there is one. It is a net.Error.
type DialError struct {
	Code
	Addr string
	// Text says more, for people; it is never parsed. Empty means the code's text.
	Text string

	cause error // the error at this end; nil if the other end has answered
}

// NewDialError makes a DialError of an error at this end of a dial to addr.
func NewDialError(addr string, err error) *DialError {
	return &DialError{Addr: addr, Code: CodeOf(err), Text: Reason(addr, err), cause: err}
}

// Error names the address and the reason.
func (e *DialError) Error() string {
	return "dial " + e.Addr + ": " + cmp.Or(e.Text, e.String())
}

// DialCode is the text of the code, for packages that must not import this one.
func (e *DialError) DialCode() string { return e.String() }

// Reason is the text of err without the beginning "dial ADDR:" of a DialError or a
// net.OpError: for the Text of a DialError. An address that differs from addr, such as the
// one that a name was resolved to, stays.
func Reason(addr string, err error) string {
	var (
		dial *DialError
		op   *net.OpError
	)
	switch {
	case errors.As(err, &dial) && err.Error() == dial.Error():
		return cmp.Or(dial.Text, dial.String())
	case errors.As(err, &op) && err.Error() == op.Error() && op.Op == "dial" && op.Err != nil:
		why := Reason(addr, op.Err)
		if op.Addr == nil || op.Addr.String() == addr || errors.As(op.Err, &dial) {
			return why
		}
		return op.Addr.String() + ": " + why
	}
	if below := errors.Unwrap(err); below != nil {
		return strings.Replace(err.Error(), below.Error(), Reason(addr, below), 1)
	}
	return err.Error()
}

// Unwrap returns the code and, if there are such, the standard library's error and the error
// at this end.
func (e *DialError) Unwrap() []error {
	errs := []error{e.Code}
	if int(e.Code) < len(codes) && codes[e.Code].std != nil {
		errs = append(errs, codes[e.Code].std)
	}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// errnoCodes maps the system's errors of a dial. It is never changed.
var errnoCodes = map[syscall.Errno]Code{
	syscall.ECONNREFUSED:  Refused,
	syscall.EHOSTUNREACH:  Unreachable,
	syscall.ENETUNREACH:   Unreachable,
	syscall.EHOSTDOWN:     Unreachable,
	syscall.ENETDOWN:      Unreachable,
	syscall.EADDRNOTAVAIL: Unreachable,
	syscall.ENOENT:        Refused, // no such unix socket
	syscall.ETIMEDOUT:     Timeout,
	syscall.EACCES:        Denied,
	syscall.EPERM:         Denied,
	syscall.ECONNRESET:    Lost,
	syscall.EPIPE:         Lost,
	syscall.EMFILE:        Busy,
	syscall.ENFILE:        Busy,
	syscall.ENOMEM:        Busy,
	syscall.ENOBUFS:       Busy,
	syscall.EAFNOSUPPORT:  Invalid,
	syscall.EINVAL:        Unreachable, // a blackhole route
}

// CodeOf is the Code that err wraps, else the one for its type, else Internal. CodeOf(nil)
// is 0.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	code, isCode := errors.AsType[Code](err)
	errno, isErrno := errors.AsType[syscall.Errno](err)
	dns, isDNS := errors.AsType[*net.DNSError](err)
	ne, isNet := errors.AsType[net.Error](err)
	switch {
	case isCode:
		return code
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case isErrno:
		return cmp.Or(errnoCodes[errno], Internal)
	case isDNS && !dns.IsTimeout:
		return Unresolved
	case errors.As(err, new(*net.AddrError)):
		return Invalid
	case isNet && ne.Timeout():
		return Timeout
	case errors.Is(err, net.ErrClosed):
		return Lost
	default:
		return Internal
	}
}

// maxRetryAfter bounds the wait that a peer can ask for.
const maxRetryAfter = time.Hour

// RetryAfter is how long to wait before the next attempt, if err wraps a Goodbye, or another
// error with such a method, that asks for it. It is an hour at most.
func RetryAfter(err error) (time.Duration, bool) {
	var asks interface{ RetryAfter() time.Duration }
	if !errors.As(err, &asks) || asks.RetryAfter() <= 0 {
		return 0, false
	}
	return min(asks.RetryAfter(), maxRetryAfter), true
}
