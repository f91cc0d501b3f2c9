// This file has the errors of joining.

package bootstrap

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrTokenRejected means that the server does not accept the join token.
var ErrTokenRejected = errors.New("the server does not accept the join token: it is unknown, expired or mistyped; make a new one with \"hawser token create\"")

// errNotOurs means that a request with our name exists and may not be read.
var errNotOurs = errors.New("a certificate request of this node was made with another token")

// A PinError means that the server has another CA than expected.
type PinError struct {
	Server string
	Want   []Pin
	Have   []Pin // of the CAs that the server showed
	// Shown is the server's own certificate; nil if there is none.
	Shown *x509.Certificate
	// Unnamed is why the cluster does not name its CA to a machine that has been shown none; nil if
	// it was not asked.
	Unnamed error
}

// Error has the hashes, since a mistyped one is the usual cause, and who has issued the
// certificate: that names what intercepts TLS on the way.
func (e *PinError) Error() string {
	shown := ""
	if e.Shown != nil {
		shown = fmt.Sprintf(", and its certificate is that of %s, issued by %s", quoteName(e.Shown.Subject), quoteName(e.Shown.Issuer))
	}
	if e.Unnamed != nil {
		shown += fmt.Sprintf(", and the cluster does not name it: %v", e.Unnamed)
	}
	return fmt.Sprintf("the CA of %s is not the one expected: its hash is %s%s; --discovery-token-ca-cert-hash says %s; do not go on before you know why",
		e.Server, joinPins(e.Have), shown, joinPins(e.Want))
}

// maxName bounds how much of a name in a stranger's certificate is told, in bytes.
const maxName = 120

func quoteName(n pkix.Name) string {
	text := n.String()
	if len(text) > maxName {
		text = text[:maxName] + "…"
	}
	return strconv.Quote(text)
}

func joinPins(pins []Pin) string {
	list := make([]string, 0, len(pins))
	for _, p := range pins {
		list = append(list, p.String())
	}
	if len(list) == 0 {
		return "none (no CA was shown)"
	}
	return strings.Join(list, ", ")
}

// A DeniedError means that the request for a certificate was refused.
type DeniedError struct {
	Name            string // of the CertificateSigningRequest
	Failed          bool   // approved, but not to be signed
	Reason, Message string
}

// Error includes the approver's message.
func (e *DeniedError) Error() string {
	verb := "denied"
	if e.Failed {
		verb = "refused by the signer"
	}
	why := e.Message
	if why == "" {
		why = e.Reason
	}
	return fmt.Sprintf("certificate request %s was %s: %s", e.Name, verb, why)
}

// A ClockError means that a certificate is not valid by this machine's clock.
type ClockError struct {
	What             string
	Now, From, Until time.Time
}

// Error says whether the clock may be fast or slow.
func (e *ClockError) Error() string {
	stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if e.Now.Before(e.From) {
		return fmt.Sprintf("%s is not valid yet: it begins at %s and this machine's clock says %s; set the clock", e.What, stamp(e.From), stamp(e.Now))
	}
	return fmt.Sprintf("%s has expired: it ended at %s and this machine's clock says %s; set the clock", e.What, stamp(e.Until), stamp(e.Now))
}

// An expiredError means that the node's certificate has expired and cannot be replaced
// now.
type expiredError struct {
	since time.Time
	err   error // why it cannot be replaced
}

// Error has the remedy. It does not change with time, so that it is logged once.
func (e *expiredError) Error() string {
	return fmt.Sprintf("the node's certificate expired at %s and no server lets the node in with it: on the server, run \"hawser token create --print-join-command\", and start this agent with the token that it prints, or put that into its --token-file; pods run on meanwhile (%v)",
		e.since.UTC().Format(time.RFC3339), e.err)
}

func (e *expiredError) Unwrap() error { return e.err }

// errNoToken means that there is no token to join again with.
var errNoToken = errors.New("this agent has no join token")

// A rejectedError means that the node is not admitted with its key and cannot get another
// certificate now.
type rejectedError struct{ err error }

// Error says what can be done.
func (e *rejectedError) Error() string {
	return fmt.Sprintf("the server does not admit this node's key any more, and it takes a join token to get another one: on the server, run "+
		"\"hawser token create --print-join-command\", and start this agent with the token that it prints, or put that into its --token-file (%v)", e.err)
}

func (e *rejectedError) Unwrap() error { return e.err }

// A refusedError means that the client certificate is refused although it has not expired, and
// cannot be replaced now.
type refusedError struct{ err error }

// Error says what can be done.
func (e *refusedError) Error() string {
	return fmt.Sprintf("a server refuses the node's certificate, whose authority may have been replaced, and it takes a join token to get another one: on the server, run "+
		"\"hawser token create --print-join-command\", and start this agent with the token that it prints, or put that into its --token-file; "+
		"keep its data directory, which has the key that holds the node's name (%v)", e.err)
}

func (e *refusedError) Unwrap() error { return e.err }

// A timeoutError means that the request was not approved and signed in time.
type timeoutError struct {
	name     string
	wait     time.Duration
	approved bool
}

// Error says what an administrator can do.
func (e *timeoutError) Error() string {
	if e.approved {
		return fmt.Sprintf("certificate request %s is approved, and its signer has not signed it within %s; see that the cluster has one for it (kubectl get csr %s) and start again", e.name, e.wait, e.name)
	}
	return fmt.Sprintf("certificate request %s was not approved and signed within %s; approve it with \"kubectl certificate approve %s\" and start again", e.name, e.wait, e.name)
}

// decided reports whether err is what the cluster says of a request, which another of its servers
// would say, too.
func decided(err error) bool {
	return errors.As(err, new(*DeniedError)) || errors.As(err, new(*timeoutError)) || apierrors.IsInvalid(err)
}

// final reports whether err is permanent.
func final(err error) bool {
	var (
		pin     *PinError
		denied  *DeniedError
		clock   *ClockError
		timeout *timeoutError
		host    x509.HostnameError
	)
	return errors.Is(err, ErrTokenRejected) || errors.As(err, &pin) || errors.As(err, &denied) || errors.As(err, &clock) ||
		errors.As(err, &timeout) || errors.As(err, &host) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}
