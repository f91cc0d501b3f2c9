// Package accounttoken makes and verifies the tokens of service accounts.
//
// A token is a JWT as Kubernetes makes it: it names the account and, unless it was
// requested by hand, the pod, secret or node that it is bound to, each with its uid. Issue
// signs one. AuthenticateToken accepts one if the signature, the issuer, the audience and
// the times are valid, and if all objects that it names still exist: a token ends with its
// pod. The signature is checked first, so that a token without one costs no look-up.
//
// Metadata and KeySet are the documents of OpenID Connect by which others verify tokens.
package accounttoken
