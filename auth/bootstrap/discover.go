// This file reads what a cluster publishes for joining nodes: the name and the authorities
// of its API server.

package bootstrap

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/auth"
)

const (
	// DefaultAPIServerName is a name in the certificates of all API servers.
	DefaultAPIServerName = "kubernetes"
	// publicMaps is the path of the ConfigMaps that joining machines may read.
	publicMaps = "/api/v1/namespaces/kube-public/configmaps/"
	// infoName, infoKey and signaturePrefix are kubeadm's: a kubeconfig, and its
	// signatures by join tokens.
	infoName, infoKey, signaturePrefix = "cluster-info", "kubeconfig", "jws-kubeconfig-"
	// maxPublic bounds the answer with a ConfigMap.
	maxPublic = 1 << 20
)

var (
	// errNotPublished means that a public ConfigMap does not exist.
	errNotPublished = errors.New("does not exist")
	// errNotReadable means that a public ConfigMap may not be read. That may be so for a
	// moment: an API server that has just started lets nobody in.
	errNotReadable = errors.New("may not be read by this machine")
)

// A clusterInfo is the published information about a cluster, signed with a join token.
type clusterInfo struct {
	name string              // of the API server
	cas  []*x509.Certificate // its authorities
}

// discover reads clusterInfo from a server that is not trusted yet. The answer is signed
// with the token's secret, which is not sent.
func (c *Config) discover(ctx context.Context, server string, token Token) (*clusterInfo, error) {
	t := c.transport(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the signature is verified below
	})
	defer t.CloseIdleConnections()
	m, err := publicMap(ctx, t, server, infoName)
	if err != nil {
		return nil, err
	}
	text := m.Data[infoKey]
	if err = verifyDetached(m.Data[signaturePrefix+token.ID], text, token); err != nil {
		return nil, fmt.Errorf("ConfigMap kube-public/%s of %s: %w", infoName, server, err)
	}
	info, err := parseInfo(text)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap kube-public/%s of %s: %w", infoName, server, err)
	}
	return info, nil
}

// publicMap reads a ConfigMap of namespace kube-public. It returns errNotPublished if it
// does not exist, and errNotReadable if it may not be read.
func publicMap(ctx context.Context, t http.RoundTripper, server, name string) (*corev1.ConfigMap, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(server, "/")+publicMaps+name, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "hawser-agent")
	resp, err := busyTransport{t}.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("get ConfigMap %s of %s: %w", name, server, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, fmt.Errorf("ConfigMap kube-public/%s %w", name, errNotPublished)
	case http.StatusForbidden, http.StatusUnauthorized:
		return nil, fmt.Errorf("ConfigMap kube-public/%s %w (%s)", name, errNotReadable, resp.Status)
	default:
		return nil, fmt.Errorf("get ConfigMap %s of %s: %s", name, server, resp.Status)
	}
	var m corev1.ConfigMap
	if err = json.NewDecoder(io.LimitReader(resp.Body, maxPublic)).Decode(&m); err != nil {
		return nil, fmt.Errorf("get ConfigMap %s of %s: %w", name, server, err)
	}
	return &m, nil
}

// verifyDetached verifies a detached JWS (RFC 7515, appendix F) with HS256 by the secret
// of a token, as kubeadm does.
func verifyDetached(signature, payload string, token Token) error {
	parts := strings.Split(signature, ".")
	if signature == "" || len(parts) != 3 || parts[1] != "" {
		return fmt.Errorf("it is not signed by the join token %s: most often that has expired, or is not known there; kube-controller-manager signs it within seconds for a token that may sign (usages signing and authentication); \"hawser token create\" makes such a token", token.ID)
	}
	header, err := base64.RawURLEncoding.DecodeString(parts[0])
	var h struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}
	if err == nil {
		err = json.Unmarshal(header, &h)
	}
	sum, bad := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || bad != nil || h.Algorithm != "HS256" || h.Key != token.ID {
		return fmt.Errorf("its signature by the join token %s cannot be read", token.ID)
	}
	mac := hmac.New(sha256.New, []byte(token.Secret))
	_, _ = io.WriteString(mac, parts[0]+"."+base64.RawURLEncoding.EncodeToString([]byte(payload))) // a hash never fails
	if !hmac.Equal(sum, mac.Sum(nil)) {
		return fmt.Errorf("its signature by the join token %s is wrong; do not go on before you know why", token.ID)
	}
	return nil
}

// parseInfo reads the cluster of a kubeconfig.
func parseInfo(text string) (*clusterInfo, error) {
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				Name   string `json:"tls-server-name"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := yaml.Unmarshal([]byte(text), &k); err != nil {
		return nil, fmt.Errorf("key %s: %w", infoKey, err)
	}
	if len(k.Clusters) != 1 {
		return nil, fmt.Errorf("key %s: it has %d clusters, want one", infoKey, len(k.Clusters))
	}
	cluster := k.Clusters[0].Cluster
	u, err := url.Parse(cluster.Server)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("key %s: server %q is no URL", infoKey, cluster.Server)
	}
	info := &clusterInfo{name: u.Hostname()}
	if cluster.Name != "" {
		info.name = cluster.Name
	}
	if info.cas, err = auth.ParseCertificates(cluster.CA); err != nil {
		return nil, fmt.Errorf("key %s: certificate-authority-data: %w", infoKey, err)
	}
	return info, nil
}
