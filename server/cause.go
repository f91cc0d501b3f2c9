// Causes: why a session was parked or ended, derived from its error.

package server

import (
	"errors"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
)

// A State is the state of a node's session.
type State int

const (
	// Detached: there is none.
	Detached State = iota
	// Attached: there is one, and it has a connection.
	Attached
	// Parked: there is one, and it waits for another connection.
	Parked
)

var stateNames = [...]string{"Detached", "Attached", "Parked"}

// String is the state's name.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return stateNames[Detached]
	}
	return stateNames[s]
}

// A Cause is the kind of reason for which a session lost its connection or ended. Closed
// proves that whoever closed it was running; Silent proves nothing about anybody.
type Cause int

const (
	// Unknown: it is attached.
	Unknown Cause = iota
	// Silent: the keepalive timed out, or the network reported the peer unreachable.
	Silent
	// Closed: the peer, or a middlebox, closed or reset the connection.
	Closed
	// Left: the agent sent a goodbye.
	Left
	// Replaced: another session of the node has taken its place.
	Replaced
	// Refused: the agent was refused.
	Refused
	// Drained: this server shut down.
	Drained
	// Failed: the agent violated the protocol, or the tunnel has a bug.
	Failed
)

var causeNames = [...]string{"Unknown", "Silent", "Closed", "Left", "Replaced", "Refused", "Drained", "Failed"}

// String is the cause's name.
func (c Cause) String() string {
	if c < 0 || int(c) >= len(causeNames) {
		return causeNames[Unknown]
	}
	return causeNames[c]
}

// MarshalText and UnmarshalText write states and causes by their names: other servers
// read them, which may be of another version.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads an unknown name as Detached.
func (s *State) UnmarshalText(b []byte) error {
	if *s = State(slices.Index(stateNames[:], string(b))); *s < 0 {
		*s = Detached
	}
	return nil
}

// MarshalText is like State's.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads an unknown name as Failed.
func (c *Cause) UnmarshalText(b []byte) error {
	if *c = Cause(slices.Index(causeNames[:], string(b))); *c < 0 {
		*c = Failed
	}
	return nil
}

// deliberate reports whether an agent or a server ended the session on purpose.
func (c Cause) deliberate() bool {
	return c == Left || c == Replaced || c == Refused || c == Drained
}

// causeOf returns the Cause of err.
func causeOf(err error) Cause {
	var (
		bye   *tunnel.Goodbye
		errno syscall.Errno
	)
	switch {
	case err == nil:
		return Unknown
	case errors.As(err, &bye) && bye.Code != tunnel.Internal, errors.Is(err, tunnel.Draining):
		return Left
	case errors.Is(err, tunnel.Replaced):
		return Replaced
	case errors.Is(err, tunnel.Denied), errors.Is(err, tunnel.Revoked):
		return Refused
	case errors.Is(err, tunnel.Dead), errors.Is(err, os.ErrDeadlineExceeded), silentErrno(err):
		return Silent
	case errors.Is(err, tunnel.Internal), errors.Is(err, tunnel.ErrFrame):
		return Failed
	case errors.Is(err, tunnel.Lost), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &errno):
		return Closed
	default:
		return Failed
	}
}

// silentErrno reports whether the kernel gave up a connection because the peer did not
// answer.
func silentErrno(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EHOSTDOWN,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// maxText bounds what is kept of an error's text, in bytes.
const maxText = 512

// text is the text of err, truncated to maxText.
func text(err error) string {
	if err == nil {
		return ""
	}
	return truncated(err.Error(), maxText)
}
