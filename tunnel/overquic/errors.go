// Errors: what QUIC's mean to a session.

package overquic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

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

// lost is what the connection's error means for the session. What others than the peer's
// goodbye and a broken connection unwrap to would mislead: a session that was cut is no
// deadline, and not closed by its own end.
func lost(err error) error {
	var (
		app       *quic.ApplicationError
		transport *quic.TransportError
		idle      *quic.IdleTimeoutError
	)
	switch {
	case goodbye(err) != nil:
		return fmt.Errorf("%w: peer closed the connection: %w", tunnel.Lost, goodbye(err))
	case errors.As(err, &app) && app.Remote:
		return fmt.Errorf("%w: peer closed the connection: %s", tunnel.Lost, clip(app.ErrorMessage))
	case errors.As(err, &app):
		return tunnel.ErrSessionClosed
	case errors.As(err, &transport):
		return fmt.Errorf("%w: connection broke: %w", tunnel.Lost, alert(err))
	case errors.As(err, &idle):
		return fmt.Errorf("%w: %v", tunnel.Dead, err) //nolint:errorlint // see above
	default:
		return fmt.Errorf("%w: %v", tunnel.Lost, err) //nolint:errorlint // see above
	}
}

// goodbye is what the peer has said with its CONNECTION_CLOSE; nil if it said nothing.
func goodbye(err error) *tunnel.Goodbye {
	var app *quic.ApplicationError
	if !errors.As(err, &app) || !app.Remote || app.ErrorCode/codeGoodbye != 1 || app.ErrorCode&0xff == 0 {
		return nil
	}
	return tunnel.GoodbyeBy(uint64(app.ErrorCode-codeGoodbye), clip(app.ErrorMessage))
}

func clip(text string) string { return text[:min(len(text), maxReason)] }

// alert makes of an alert of the peer's TLS what it is over TCP, and of a peer's goodbye
// what it said.
func alert(err error) error {
	if bye := goodbye(err); bye != nil {
		return bye
	}
	var e *quic.TransportError
	if errors.As(err, &e) && e.Remote && e.ErrorCode.IsCryptoError() {
		return &net.OpError{Op: "remote error", Err: tls.AlertError(e.ErrorCode & 0xff)} // RFC 9001, 4.8
	}
	return err
}
