// Errors: translates the library's errors.

package overquic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// The codes of CONNECTION_CLOSE: codeClosed, or codeGoodbye plus the ErrorCode of a
// tunnel.Goodbye.
const (
	codeClosed  quic.ApplicationErrorCode = 0
	codeGoodbye quic.ApplicationErrorCode = 1 << 56
)

// maxReason bounds the reason, in bytes, so that CONNECTION_CLOSE fits into one packet.
const maxReason = 512

// sessionError translates the error of a connection that has ended. Most of the library's
// errors are not wrapped: an idle timeout, for one, is a deadline error, and the session did
// not miss a deadline.
func sessionError(err error) error {
	var app *quic.ApplicationError
	switch {
	case goodbye(err) != nil:
		return fmt.Errorf("%w: peer closed the connection: %w", tunnel.Lost, goodbye(err))
	case errors.As(err, &app) && app.Remote:
		return fmt.Errorf("%w: peer closed the connection: %s", tunnel.Lost, clip(app.ErrorMessage))
	case errors.As(err, &app):
		return tunnel.ErrSessionClosed
	case errors.As(err, new(*quic.TransportError)):
		return fmt.Errorf("%w: connection broke: %w", tunnel.Lost, tlsError(err))
	case errors.As(err, new(*quic.IdleTimeoutError)):
		return fmt.Errorf("%w: %v", tunnel.Dead, err) //nolint:errorlint // see above
	default:
		return fmt.Errorf("%w: %v", tunnel.Lost, err) //nolint:errorlint // see above
	}
}

// goodbye is the tunnel.Goodbye in the peer's CONNECTION_CLOSE; nil if there is none.
func goodbye(err error) *tunnel.Goodbye {
	var app *quic.ApplicationError
	if !errors.As(err, &app) || !app.Remote || app.ErrorCode/codeGoodbye != 1 || app.ErrorCode&0xff == 0 {
		return nil
	}
	return tunnel.GoodbyeBy(uint64(app.ErrorCode-codeGoodbye), clip(app.ErrorMessage))
}

func clip(text string) string { return text[:min(len(text), maxReason)] }

// tlsError translates a TLS alert of the peer to what it is over TCP, and a CONNECTION_CLOSE
// to the peer's Goodbye.
func tlsError(err error) error {
	if bye := goodbye(err); bye != nil {
		return bye
	}
	if e, ok := errors.AsType[*quic.TransportError](err); ok && e.Remote && e.ErrorCode.IsCryptoError() {
		return &net.OpError{Op: "remote error", Err: tls.AlertError(e.ErrorCode & 0xff)} // RFC 9001, 4.8
	}
	return err
}
