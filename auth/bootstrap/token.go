// This file parses join tokens and hashes of CAs.

package bootstrap

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/auth"
)

// A Token is a bootstrap token: a public id, and a secret.
type Token struct{ ID, Secret string }

// Lengths of the parts of a token.
const (
	tokenIDLength     = 6
	tokenSecretLength = 16
)

// ParseToken reads ID.SECRET. Its errors do not repeat the secret.
func ParseToken(s string) (Token, error) {
	id, secret, ok := strings.Cut(s, ".")
	switch {
	case !ok:
		return Token{}, errors.New("join token must be ID.SECRET, and has no dot")
	case len(id) != tokenIDLength || !lowerAlphanumeric(id):
		return Token{}, fmt.Errorf("join token must be ID.SECRET: the id must be %d characters of a-z and 0-9", tokenIDLength)
	case len(secret) != tokenSecretLength || !lowerAlphanumeric(secret):
		return Token{}, fmt.Errorf("join token must be ID.SECRET: the secret must be %d characters of a-z and 0-9", tokenSecretLength)
	}
	return Token{ID: id, Secret: secret}, nil
}

func lowerAlphanumeric(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

// maxTokenFile bounds what is read of a file with a token.
const maxTokenFile = 4 << 10

// ReadToken reads ID.SECRET from a file, without white space around it. Its errors name
// the file and do not repeat its content; if the file does not exist the error wraps
// fs.ErrNotExist.
func ReadToken(path string) (Token, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Token{}, fmt.Errorf("read the join token: %w", err)
	}
	if !info.Mode().IsRegular() { // reading another kind of file may block
		return Token{}, fmt.Errorf("read the join token: %s is not a regular file", path)
	}
	if info.Size() > maxTokenFile {
		return Token{}, fmt.Errorf("read the join token: %s has %d bytes: a token is one line, ID.SECRET", path, info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Token{}, fmt.Errorf("read the join token: %w", err)
	}
	token, err := ParseToken(strings.TrimSpace(string(b)))
	if err != nil {
		return Token{}, fmt.Errorf("%s: %w", path, err)
	}
	return token, nil
}

// String hides the secret.
func (t Token) String() string { return t.ID + ".***" }

// A Pin is the hash of a CA's public key.
type Pin [sha256.Size]byte

const pinPrefix = "sha256:"

// ParsePins reads hashes of the form sha256:HEX, separated by commas.
func ParsePins(s string) ([]Pin, error) {
	var pins []Pin
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		digits, ok := strings.CutPrefix(strings.ToLower(item), pinPrefix)
		if !ok {
			return nil, fmt.Errorf("CA hash %q must begin with %s", item, pinPrefix)
		}
		b, err := hex.DecodeString(digits)
		if err != nil || len(b) != sha256.Size {
			return nil, fmt.Errorf("CA hash %q must have %d hexadecimal digits after %s", item, 2*sha256.Size, pinPrefix)
		}
		pins = append(pins, Pin(b))
	}
	return pins, nil
}

// PinOf returns the hash of a certificate's public key.
func PinOf(cert *x509.Certificate) Pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

// PinsOf are the pins of the authorities in a kubeconfig's certificate-authority-data, each
// once: a server may show any of them.
func PinsOf(authorities []byte) ([]Pin, error) {
	if len(authorities) == 0 {
		return nil, errors.New("the kubeconfig holds no certificate-authority-data: nodes would not know which server to believe")
	}
	list, err := auth.ParseCertificates(authorities)
	if err != nil {
		return nil, fmt.Errorf("certificate-authority-data: %w", err)
	}
	var pins []Pin
	for _, ca := range list {
		if pin := PinOf(ca); !slices.Contains(pins, pin) {
			pins = append(pins, pin)
		}
	}
	return pins, nil
}

// String is the form that ParsePins reads.
func (p Pin) String() string { return pinPrefix + hex.EncodeToString(p[:]) }

func pinsMatch(pins []Pin, cert *x509.Certificate) bool { return slices.Contains(pins, PinOf(cert)) }
