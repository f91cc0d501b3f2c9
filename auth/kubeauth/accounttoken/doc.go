// Package accounttoken makes the tokens of service accounts and believes them.
//
// A token is a JWT as Kubernetes makes it: it names the account and, unless it was asked
// for by hand, the pod, secret or node that it is bound to, each with its uid. Issue
// signs one. AuthenticateToken believes one if the signature, the issuer, the audience
// and the times are right, and if everything that it names still exists: a token ends
// with its pod. The signature comes first, so that what nobody signed costs no look-up.
//
// Metadata and KeySet are the documents by which others check tokens themselves, as
// OpenID Connect has it.
package accounttoken
