// This file keeps keys and certificates.

package bootstrap

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/atomicfile"
)

const (
	certBlock = "CERTIFICATE"
	keyBlock  = "EC PRIVATE KEY"
)

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// pendingKey returns the key at path, and makes it if there is none. It is stored so that
// a restarted agent finds the request that it has made with it.
func pendingKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := readKey(path)
	if key != nil || err != nil {
		return key, err
	}
	if key, err = newKey(); err != nil {
		return nil, err
	}
	data, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeFile(path, data, 0o600)
}

// readKey returns the key at path, or nil if there is none.
func readKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path) //nolint:gosec // of the data directory
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if block, _ := pem.Decode(data); block != nil {
		if key, bad := x509.ParseECPrivateKey(block.Bytes); bad == nil {
			return key, nil
		}
	}
	return nil, nil //nolint:nilnil // A torn file is none: only a request depends on it, which will expire.
}

// Keys are the SHA-256 of the public keys by which a cluster may know the node: that of its
// certificate, and that of a request for one. A directory without keys has none. An error
// means that a file cannot be read.
func (c *Config) Keys() ([]Pin, error) {
	var keys []Pin
	pair, err := c.readClient()
	if err == nil {
		keys = append(keys, PinOf(pair.Leaf))
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	pending, err := readKey(c.path(pendingFile))
	if pending == nil || err != nil {
		return keys, err
	}
	der, err := x509.MarshalPKIXPublicKey(&pending.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return append(keys, sha256.Sum256(der)), nil
}

// kept returns the stored certificate if it is the node's, whether it is valid or not; nil if
// there is none.
func (c *Config) kept() *tls.Certificate {
	pair, err := readPair(c.path(clientFile))
	if err != nil {
		return nil
	}
	if name, err := auth.NodeName(pair.Leaf); err != nil || name != c.NodeName {
		return nil
	}
	return pair
}

// joinKey returns the key to join with. It is that of have if there is no pending key: the
// cluster may know the node by it, and then gives the node's name to no other.
func (c *Config) joinKey(have *tls.Certificate) (*ecdsa.PrivateKey, error) {
	path := c.path(pendingFile)
	if have != nil {
		key, ok := have.PrivateKey.(*ecdsa.PrivateKey)
		if _, err := os.Lstat(path); ok && errors.Is(err, os.ErrNotExist) {
			return key, nil
		}
	}
	return pendingKey(path)
}

// changeKey has the next try to join use another key than the last one, which was refused.
// After a pending key that is the one of the present certificate, if there is one, and after
// that a new one.
func (c *Config) changeKey() error {
	path := c.path(pendingFile)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		_, err = pendingKey(path)
		return err
	}
	return remove(path)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

func encodeCerts(list ...*x509.Certificate) []byte {
	var out []byte
	for _, cert := range list {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: cert.Raw})...)
	}
	return out
}

// encodePair is the content of a file with a certificate (PEM, with its chain) and its key,
// which are replaced together.
func encodePair(cert []byte, key *ecdsa.PrivateKey) ([]byte, error) {
	data, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return slices.Concat(cert, data), nil
}

func readPair(path string) (*tls.Certificate, error) {
	data, err := os.ReadFile(path) //nolint:gosec // of the data directory
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", path, err)
	}
	return &pair, nil
}

// readClient reads the node's certificate and its key. The error has the remedy: without the key the
// node's name is held by a key that nobody has.
func (c *Config) readClient() (*tls.Certificate, error) {
	pair, err := readPair(c.path(clientFile))
	if io := (*fs.PathError)(nil); err == nil || errors.As(err, &io) {
		return pair, err
	}
	return nil, fmt.Errorf("%w; the node's key is lost with it: have an administrator run \"hawser node allow %s\", then remove the file and join with a token (--token-file)", err, c.NodeName)
}

// readCerts reads one certificate or more.
func readCerts(path string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(path) //nolint:gosec // of the data directory
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	list, err := auth.ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("read CA %s: %w", path, err)
	}
	return list, nil
}

// writeFile replaces a file, and makes its directory. The error's text has no name of a file
// that is there for a moment, so that it is the same each time.
func writeFile(path string, data []byte, mode os.FileMode) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = atomicfile.Write(path, data, mode)
	}
	if err == nil {
		return nil
	}
	var (
		one *fs.PathError
		two *os.LinkError
	)
	switch {
	case errors.As(err, &one):
		err = one.Err
	case errors.As(err, &two):
		err = two.Err
	}
	return fmt.Errorf("write %s: %w", path, err)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", filepath.Base(path), err)
	}
	return nil
}
