package accounttoken

// The keys: one signs, all verify.

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// keys are one generation of keys. They do not change.
type keys struct {
	signer jose.Signer
	public publicKeys
}

// publicKeys are the keys whose signatures are accepted, the signing one first.
type publicKeys []jose.JSONWebKey

func newPublicKeys(keys []crypto.PublicKey) (publicKeys, error) {
	var out publicKeys
	for i, k := range keys {
		alg, err := algorithm(k)
		if err != nil {
			return nil, fmt.Errorf("public key %d of service accounts: %w", i+1, err)
		}
		id, err := keyID(k)
		if err != nil {
			return nil, fmt.Errorf("public key %d of service accounts: %w", i+1, err)
		}
		out = append(out, jose.JSONWebKey{Key: k, KeyID: id, Algorithm: string(alg), Use: "sig"})
	}
	if len(out) == 0 {
		return nil, errors.New("no public key of service accounts")
	}
	return out, nil
}

// algorithms are the keys' algorithms, each once.
func (ks publicKeys) algorithms() []jose.SignatureAlgorithm {
	var out []jose.SignatureAlgorithm
	for i := range ks {
		if alg := jose.SignatureAlgorithm(ks[i].Algorithm); !slices.Contains(out, alg) {
			out = append(out, alg)
		}
	}
	return out
}

// candidates are the keys that may have signed a token with that key id: the one of that id
// if there is one, and else all.
func (ks publicKeys) candidates(id string) publicKeys {
	for i := range ks {
		if id != "" && ks[i].KeyID == id {
			return ks[i : i+1]
		}
	}
	return ks
}

// newSigner returns a signer for key.
func newSigner(key crypto.Signer) (jose.Signer, error) {
	alg, err := algorithm(key.Public())
	if err != nil {
		return nil, fmt.Errorf("signing key of service accounts: %w", err)
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, fmt.Errorf("signing key of service accounts: %w", err)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return nil, fmt.Errorf("signing key of service accounts: %w", err)
	}
	return s, nil
}

// everyAlgorithm are the supported algorithms.
var everyAlgorithm = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// algorithm is the algorithm of a key: a token does not choose it.
func algorithm(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", fmt.Errorf("%T cannot be used: want RSA, or ECDSA on P-256, P-384 or P-521", key)
}

// keyID is the id of a key in headers and in the key set, as in Kubernetes.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}
