// Package csr turns certificate signing requests into certificates: it approves
// those that kubelets make, signs the approved ones, and clears away what is
// left over, expired bootstrap tokens included.
//
// A request goes through three hands. The API server notes who made it. The
// approver decides whether that party may have what it asks for; whatever it
// does not recognise waits for a person. Names of the server are refused to nodes. The signer checks that what is
// approved fits the signer's own rules, since a person may approve anything,
// and issues it. The two share no state but the request itself.
//
// The rules (rules.go) are pure functions of a request and of what is known of
// the node it names. A first certificate for a node name is refused while another
// key holds that name (package auth/nodekeys), however long its node has been
// silent. Which key holds a name is written down before the certificate is approved,
// and looked at once more before it is signed.
//
// What it is not: there is no certificate authority here, only its use. Package
// auth/pki makes the key.
package csr
