// Dismissing: ending a session with the reason for it.

package tunnel

import "errors"

// A Dismisser is a Session whose end itself can carry a reason, so that the peer
// learns it even if nothing that was written before has arrived.
type Dismisser interface {
	Session
	// Dismiss is Close with a reason. The error for which the session is over at
	// the peer wraps a *Goodbye with code and the beginning of text.
	Dismiss(code Code, text string) error
}

// Dismiss closes s, for a reason that the peer is told if s is a Dismisser. A Control
// tells it on any session, if it can be written to.
func Dismiss(s Session, code Code, text string) error {
	if d, ok := s.(Dismisser); ok {
		return d.Dismiss(code, clip(text))
	}
	return s.Close()
}

// told is the peer's Goodbye if err wraps one, whatever else err says of the
// session, and err otherwise.
func told(err error) error {
	var bye *Goodbye
	if errors.As(err, &bye) {
		return bye
	}
	return err
}
