// Reading and writing of PEM files, and the kubeconfig that names them.

package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/atomicfile"
)

// WriteKubeconfig writes to file (mode 0600) a kubeconfig with the client certificate of
// that name for server, an https URL. It contains all data, so that it can be copied to
// another machine. A file that is so already is not written: there may be no space for another.
func (p *PKI) WriteKubeconfig(file, server, name string) error {
	ca, err := os.ReadFile(p.Path(CA, false))
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(p.Path(name, false))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(p.Path(name, true))
	if err != nil {
		return err
	}
	const cluster = "hawser"
	out, err := yaml.Marshal(clientcmdv1.Config{
		APIVersion: "v1",
		Kind:       "Config",
		Clusters: []clientcmdv1.NamedCluster{{Name: cluster, Cluster: clientcmdv1.Cluster{
			Server: server, CertificateAuthorityData: ca,
		}}},
		AuthInfos: []clientcmdv1.NamedAuthInfo{{Name: name, AuthInfo: clientcmdv1.AuthInfo{
			ClientCertificateData: cert, ClientKeyData: key,
		}}},
		Contexts:       []clientcmdv1.NamedContext{{Name: cluster, Context: clientcmdv1.Context{Cluster: cluster, AuthInfo: name}}},
		CurrentContext: cluster,
	})
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	const mode = 0o600
	if info, err := os.Lstat(file); err == nil && info.Mode() == mode {
		if now, err := os.ReadFile(file); err == nil && bytes.Equal(now, out) {
			return nil
		}
	}
	return writeFile(file, out, mode)
}

// readCerts reads a file of one certificate or more.
func readCerts(file string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	certs, err := auth.ParseCertificates(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return certs, nil
}

func sameCerts(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}

// exists reports whether one of files exists.
func exists(files ...string) (bool, error) {
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			return true, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

func readKey(file string) (crypto.Signer, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// parseKey reads a key in PEM, as PKCS #8, SEC 1 or PKCS #1: files may be an
// administrator's.
func parseKey(data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("it holds a key that cannot sign")
	}
	return signer, nil
}

func writeKey(file string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return writeFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.Bytes()
}

// changed is called after each change of a file, and prepare before it; tests replace them.
var (
	changed = func() {}
	prepare = atomicfile.Prepare
)

func writeFile(file string, data []byte, mode os.FileMode) error {
	return writeFileAnd(file, data, mode, func() error { return nil })
}

// writeFileAnd calls then once there is space for the file, and writes it if then has done
// its work.
func writeFileAnd(file string, data []byte, mode os.FileMode, then func() error) error {
	p, err := prepare(file, data, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err = then(); err != nil {
		p.Discard()
		return err
	}
	if err = p.Commit(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	changed()
	return nil
}
