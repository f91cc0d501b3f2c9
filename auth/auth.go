// Package auth identifies the peers of connections.
//
// A node is identified by its certificate alone: CN system:node:NAME, O system:nodes,
// issued by the cluster's authority. The package itself imports only the standard
// library: it reads identities from verified certificates and makes the tls.Configs
// that verify them. Issuing certificates, join tokens and the API server's
// authenticators are in the packages below it.
//
// It does not authorize: each package decides what a node may do with it.
package auth

import (
	"crypto/x509"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

const (
	// NodeUserPrefix is the prefix of every node's user name (certificate's common name);
	// the node's name follows.
	NodeUserPrefix = "system:node:"
	// NodesGroup is the group (certificate's organization) of every node.
	NodesGroup = "system:nodes"
)

// ErrNotNode is wrapped by errors about a certificate that is no node's.
var ErrNotNode = errors.New("not a node's certificate")

// NodeName is the name of the node in its certificate cert. It does not verify the
// certificate: call it with one that TLS has verified.
func NodeName(cert *x509.Certificate) (string, error) {
	if cert == nil {
		return "", fmt.Errorf("%w: there is none", ErrNotNode)
	}
	name, ok := strings.CutPrefix(cert.Subject.CommonName, NodeUserPrefix)
	if !ok {
		return "", fmt.Errorf("%w: common name %q does not begin with %s", ErrNotNode, cert.Subject.CommonName, NodeUserPrefix)
	}
	if !slices.Contains(cert.Subject.Organization, NodesGroup) {
		return "", fmt.Errorf("%w: organization %q does not include %s", ErrNotNode, cert.Subject.Organization, NodesGroup)
	}
	if err := CheckNodeName(name); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotNode, err)
	}
	return name, nil
}

// CheckNodeName returns an error unless name is a DNS subdomain (RFC 1123) of at most 253
// bytes in lower case.
func CheckNodeName(name string) error {
	if name == "" {
		return errors.New("node name is empty")
	}
	if len(name) > 253 {
		return fmt.Errorf("node name has %d bytes, at most 253 are allowed", len(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) {
			return fmt.Errorf("node name %q must consist of lower case letters, digits, '-' and '.', and each part must start and end with a letter or digit", name)
		}
	}
	return nil
}

func isLabel(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
