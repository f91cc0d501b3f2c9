// This file reads the identity of a node from a kubeconfig, as a kubelet has it.

package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/auth"
)

// A Kubeconfig is what the current context of a kubeconfig says to a node.
type Kubeconfig struct {
	Server        string // https://HOST:PORT, with 443 if the file names no port
	APIServerName string // the name in the certificate of the API server
	Files         GivenFiles
}

// ReadKubeconfig reads a kubeconfig. It returns an error if the file is not that of a client
// certificate. Given checks whose certificate it is.
func ReadKubeconfig(file string) (*Kubeconfig, error) {
	read, err := auth.Follow(&auth.Files{}, "kubeconfig", func(contents [][]byte) (*Kubeconfig, error) {
		cluster, user, err := parseKubeconfig(file, contents[0])
		if err != nil {
			return nil, err
		}
		u, err := parseServer(cluster.Server)
		if err != nil {
			return nil, err
		}
		server := "https://" + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
		return &Kubeconfig{
			Server: server, APIServerName: cmp.Or(cluster.TLSServerName, u.Hostname()),
			Files: GivenFiles{Kubeconfig: file, Cert: user.ClientCertificate, Key: user.ClientKey, CA: cluster.CertificateAuthority},
		}, nil
	}, file)
	if err != nil {
		return nil, err
	}
	return read.Get(), nil
}

// parseKubeconfig returns the cluster and the user of the current context. Where both data and
// a file are given, the data counts and the file's name is empty, as in client-go.
func parseKubeconfig(file string, content []byte) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	all, err := clientcmd.Load(content)
	if err != nil {
		return nil, nil, err
	}
	if err = clientcmd.ResolveConfigPaths(all, filepath.Dir(file)); err != nil {
		return nil, nil, err
	}
	current := all.Contexts[all.CurrentContext]
	if current == nil {
		return nil, nil, fmt.Errorf("its current-context, %q, is none of its contexts", all.CurrentContext)
	}
	cluster, user := all.Clusters[current.Cluster], all.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, nil, fmt.Errorf("context %q has no cluster or no user", all.CurrentContext)
	}
	for _, part := range []struct {
		data []byte
		file *string
	}{
		{user.ClientCertificateData, &user.ClientCertificate},
		{user.ClientKeyData, &user.ClientKey},
		{cluster.CertificateAuthorityData, &cluster.CertificateAuthority},
	} {
		if len(part.data) > 0 {
			*part.file = ""
		}
	}
	switch {
	case len(user.ClientCertificateData) == 0 && user.ClientCertificate == "" || len(user.ClientKeyData) == 0 && user.ClientKey == "":
		return nil, nil, errors.New("its user has no client certificate: a node needs client-certificate and client-key")
	case user.Token != "" || user.TokenFile != "" || user.Username != "" || user.Exec != nil || user.AuthProvider != nil || user.Impersonate != "":
		return nil, nil, errors.New("its user has other credentials beside the client certificate, which a node does not use: take them away")
	case cluster.InsecureSkipTLSVerify || len(cluster.CertificateAuthorityData) == 0 && cluster.CertificateAuthority == "":
		return nil, nil, errors.New("its cluster has no certificate-authority to verify the API server by")
	case cluster.ProxyURL != "":
		return nil, nil, errors.New("its cluster has a proxy-url, which a node does not use: set HTTPS_PROXY")
	}
	return cluster, user, nil
}

// errOtherFiles is why a changed kubeconfig is not used.
var errOtherFiles = errors.New("the kubeconfig names other files than before: restart the agent to use them")

// followKubeconfig follows a kubeconfig and the files that it names.
func (g *given) followKubeconfig(from GivenFiles) error {
	var err error
	if g.pair, err = g.files.KeyPairFrom(func(contents [][]byte) (cert, key []byte, err error) {
		_, user, err := parseKubeconfig(from.Kubeconfig, contents[0])
		if err == nil && (user.ClientCertificate != from.Cert || user.ClientKey != from.Key) {
			err = errOtherFiles
		}
		if err != nil {
			return nil, nil, err
		}
		cert, key = user.ClientCertificateData, user.ClientKeyData
		named := contents[1:]
		if from.Cert != "" {
			cert, named = named[0], named[1:]
		}
		if from.Key != "" {
			key = named[0]
		}
		return cert, key, nil
	}, present(from.Kubeconfig, from.Cert, from.Key)...); err != nil {
		return err
	}
	g.cas, err = g.files.AuthoritiesFrom(func(contents [][]byte) ([]byte, error) {
		cluster, _, bad := parseKubeconfig(from.Kubeconfig, contents[0])
		if bad == nil && cluster.CertificateAuthority != from.CA {
			bad = errOtherFiles
		}
		if bad != nil {
			return nil, bad
		}
		if from.CA != "" {
			return contents[1], nil
		}
		return cluster.CertificateAuthorityData, nil
	}, present(from.Kubeconfig, from.CA)...)
	return err
}

// present are the names that are not empty.
func present(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}
