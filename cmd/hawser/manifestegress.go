// hawser manifest egress: how a kube-apiserver reaches the front ends.

package main

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/spf13/cobra"
	apiserverv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// How an API server reaches a front end.
const (
	viaUDS, viaMTLS            = "uds", "mtls"
	protoGRPC, protoConnect    = "grpc", "http-connect"
	egressKind, egressSelected = "EgressSelectorConfiguration", "cluster"
)

// egressManifest is what hawser manifest egress is asked for.
type egressManifest struct {
	via, protocol string
	uds, url      string
	dataDir       string
	ca, cert, key string
}

func newManifestEgress() *cobra.Command {
	var m egressManifest
	cmd := &cobra.Command{
		Use:   "egress",
		Short: "Print kube-apiserver's EgressSelectorConfiguration",
		Long: "Prints the EgressSelectorConfiguration (" + apiserverv1beta1.SchemeGroupVersion.String() + ") by which a kube-apiserver reaches nodes, pods and\n" +
			"services through hawser server: its --egress-selector-config-file. What is not for the cluster is dialed directly.\n" +
			"Services need the server's --route-through.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := m.connection()
			if err != nil {
				return err
			}
			text, err := yaml.Marshal(map[string]any{
				"apiVersion": apiserverv1beta1.SchemeGroupVersion.String(), "kind": egressKind,
				"egressSelections": []apiserverv1beta1.EgressSelection{{Name: egressSelected, Connection: *c}},
			})
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.via, "transport", viaUDS, viaUDS+" (a unix socket) or "+viaMTLS+" (a port, with mutual TLS)")
	f.StringVar(&m.protocol, "protocol", protoConnect, protoConnect+", or "+protoGRPC+", which kube-apiserver speaks over a unix socket only")
	f.StringVar(&m.uds, "uds", "", "the server's --connect-uds, or --konnectivity-uds for "+protoGRPC)
	f.StringVar(&m.url, "url", "https://127.0.0.1:8131", "where the server's --connect-port is")
	f.StringVar(&m.dataDir, "data-dir", setup.ServerDir, "the server's --data-dir, for the defaults of the files")
	f.StringVar(&m.ca, "ca-file", "", "authority of the server's certificate (default DATA-DIR/pki/"+pki.CA+".crt)")
	f.StringVar(&m.cert, "cert-file", "", "client certificate (default DATA-DIR/pki/"+pki.ConnectClient+".crt)")
	f.StringVar(&m.key, "key-file", "", "key of --cert-file (default DATA-DIR/pki/"+pki.ConnectClient+".key)")
	return cmd
}

// checkURL refuses what kube-apiserver cannot dial.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Port() == "" || text != "https://"+u.Host {
		return fmt.Errorf("--url %q: want https://HOST:PORT, such as https://127.0.0.1:8131", text)
	}
	return nil
}

// connection is what the file says of the cluster.
func (m *egressManifest) connection() (*apiserverv1beta1.Connection, error) {
	c := &apiserverv1beta1.Connection{ProxyProtocol: apiserverv1beta1.ProtocolHTTPConnect, Transport: &apiserverv1beta1.Transport{}}
	switch m.protocol {
	case protoGRPC:
		c.ProxyProtocol = apiserverv1beta1.ProtocolGRPC
		if m.via != viaUDS {
			return nil, fmt.Errorf("--protocol %s goes with --transport %s only: kube-apiserver knows no other", protoGRPC, viaUDS)
		}
	case protoConnect:
	default:
		return nil, fmt.Errorf("--protocol %q: want %s or %s", m.protocol, protoConnect, protoGRPC)
	}
	switch m.via {
	case viaUDS:
		if m.uds == "" {
			return nil, errors.New("--uds is required with --transport " + viaUDS + ": the socket that hawser server was given")
		}
		path, err := filepath.Abs(m.uds)
		if err != nil {
			return nil, fmt.Errorf("--uds: %w", err)
		}
		c.Transport.UDS = &apiserverv1beta1.UDSTransport{UDSName: path}
	case viaMTLS:
		if err := checkURL(m.url); err != nil {
			return nil, err
		}
		t := &apiserverv1beta1.TLSConfig{}
		for _, f := range []struct {
			to            *string
			given, inData string
		}{{&t.CABundle, m.ca, pki.CA + ".crt"}, {&t.ClientCert, m.cert, pki.ConnectClient + ".crt"}, {&t.ClientKey, m.key, pki.ConnectClient + ".key"}} {
			if f.given == "" {
				f.given = filepath.Join(m.dataDir, "pki", f.inData)
			}
			path, err := filepath.Abs(f.given)
			if err != nil {
				return nil, err
			}
			*f.to = path
		}
		c.Transport.TCP = &apiserverv1beta1.TCPTransport{URL: m.url, TLSConfig: t}
	default:
		return nil, fmt.Errorf("--transport %q: want %s or %s", m.via, viaUDS, viaMTLS)
	}
	return c, nil
}
