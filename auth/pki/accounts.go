// The keys of service accounts' tokens.
//
// service-account.key signs. service-account.pub has all keys whose signatures are
// accepted, that one first. Both are followed. If service-account.key is removed, the next
// start makes another one: it signs from then on, and tokens of the old one are valid until
// its block is removed from service-account.pub.

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth"
)

// serviceAccount is the name of the files.
const serviceAccount = "service-account"

// maxAccountKeys bounds the keys that are tried for a token without a key id.
const maxAccountKeys = 16

// AccountKeys sign and verify the tokens of service accounts.
type AccountKeys struct {
	Signer crypto.Signer
	Public []crypto.PublicKey // that of Signer first
}

// AccountKeys returns the keys of Ensure.
func (p *PKI) AccountKeys() AccountKeys { return p.accounts }

// FollowAccountKeys follows both files. The public half of a new signing key is written to
// service-account.pub, and accepted also if that fails, which is logged.
func (p *PKI) FollowAccountKeys(files *auth.Files) (*auth.File[AccountKeys], error) {
	return auth.Follow(files, "keys of service account tokens", func(contents [][]byte) (AccountKeys, error) {
		signer, err := parseKey(contents[0])
		if err != nil {
			return AccountKeys{}, err
		}
		public, err := parsePublicKeys(contents[1])
		if err != nil {
			return AccountKeys{}, err
		}
		keys, err := p.accountKeys(signer, public)
		if err == nil && len(keys.Public) > len(public) {
			// What this key signs counts also once another one has taken its place.
			if werr := p.writeAccountKeys(keys.Public); werr != nil {
				p.cfg.Log.Error("the new key of service account tokens is not in the file of those that count: what it signs ends with it", "file", p.accountsFile(), "err", werr)
			}
		}
		return keys, err
	}, p.Path(serviceAccount, true), p.accountsFile())
}

// accountKeys are signer's public half and public, each once.
func (p *PKI) accountKeys(signer crypto.Signer, public []crypto.PublicKey) (AccountKeys, error) {
	all := []crypto.PublicKey{signer.Public()}
	for _, k := range public {
		if !sameKey(k, signer.Public()) {
			all = append(all, k)
		}
	}
	if len(all) > maxAccountKeys {
		return AccountKeys{}, fmt.Errorf("%s names %d keys, at most %d: take the last ones out, tokens that they signed end then", p.accountsFile(), len(all), maxAccountKeys)
	}
	return AccountKeys{Signer: signer, Public: all}, nil
}

// accountsFile holds the public keys.
func (p *PKI) accountsFile() string { return filepath.Join(p.cfg.Dir, serviceAccount+".pub") }

func (p *PKI) ensureAccountKeys() error {
	file := p.Path(serviceAccount, true)
	signer, err := readKey(file)
	if errors.Is(err, os.ErrNotExist) {
		fresh, made := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if made != nil {
			return made
		}
		signer, err = fresh, writeKey(file, fresh)
	}
	if err != nil {
		return fmt.Errorf("key of service account tokens: %w", err)
	}
	public, err := readPublicKeys(p.accountsFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("keys of service account tokens: %w", err)
	}
	if p.accounts, err = p.accountKeys(signer, public); err != nil {
		return err
	}
	all := p.accounts.Public
	if len(public) == len(all) && sameKey(public[0], all[0]) {
		return nil
	}
	return p.writeAccountKeys(all)
}

// writeAccountKeys writes the file of public keys.
func (p *PKI) writeAccountKeys(all []crypto.PublicKey) error {
	var b bytes.Buffer
	for _, k := range all {
		der, err := x509.MarshalPKIXPublicKey(k)
		if err != nil {
			return fmt.Errorf("keys of service account tokens: %w", err)
		}
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	return writeFile(p.accountsFile(), b.Bytes(), 0o644)
}

func sameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// readPublicKeys reads a file of one public key or more.
func readPublicKeys(file string) ([]crypto.PublicKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	keys, err := parsePublicKeys(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return keys, nil
}

func parsePublicKeys(rest []byte) ([]crypto.PublicKey, error) {
	var keys []crypto.PublicKey
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", len(keys)+1, err)
		}
		keys = append(keys, key)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("what follows key %d is no PEM", len(keys))
	}
	return keys, nil
}
