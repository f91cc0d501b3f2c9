// Whose cluster the store has: a server that is new to it must share an authority with it.

package apiserver

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/atomicfile"
)

// A ForeignError says that the cluster in the store was begun by servers with other authorities: no
// node, and no other server, believes what this one signs.
type ForeignError struct {
	File string // of this server's authorities
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s has none of the authorities of the cluster in the store (ConfigMap %s/%s): replace its directory by that of another of the cluster's servers, or of a backup (hawser help servers)",
		e.File, metav1.NamespaceSystem, authenticationConfig)
}

// shareAuthorities returns a ForeignError if this server is new to the cluster in a store that servers
// share, and has no authority in common with it. A cluster that has none yet is this server's. What
// keeps the answer away is logged, after Config.ReadyBound at most: as with kinds that cannot be
// listed, nobody could mend it without this server.
func (s *Server) shareAuthorities(ctx context.Context, client kubernetes.Interface) error {
	if len(s.cfg.EtcdServers.Servers) == 0 || s.cfg.ClusterFile == "" {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, s.cfg.ReadyBound)
	defer cancel()
	for {
		err := s.joinCluster(asking, client)
		if err == nil || ctx.Err() != nil || errors.As(err, new(*ForeignError)) {
			return err
		}
		if again := time.After(builtinAgain); unanswered(err) {
			select {
			case <-again:
				continue
			case <-asking.Done():
			}
		}
		s.cfg.Log.Warn("cannot tell whether the cluster in the store has this server's authorities", "err", err)
		return nil
	}
}

// unanswered reports whether the store may have an answer later.
func unanswered(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		errors.Is(err, context.DeadlineExceeded)
}

// joinCluster keeps the UID of the cluster, which is that of kube-system, in Config.ClusterFile. If
// that has another one, or none, the authorities are compared before. Of several servers that find
// none the first has the cluster.
func (s *Server) joinCluster(ctx context.Context, client kubernetes.Interface) error {
	namespaces := client.CoreV1().Namespaces()
	if err := ensure(ctx, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, nil); err != nil {
		return err
	}
	cluster, err := namespaces.Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	kept, err := os.ReadFile(s.cfg.ClusterFile)
	if err == nil && strings.TrimSpace(string(kept)) == string(cluster.UID) {
		return nil
	}
	config, err := s.authentication()
	if err != nil {
		return err
	}
	configs := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	if err = ensure(ctx, configs, config, nil); err != nil {
		return err
	}
	if config, err = configs.Get(ctx, config.Name, metav1.GetOptions{}); err != nil {
		return err
	}
	if noneOf(config.Data[clientsKey], s.files.clients) {
		return &ForeignError{s.cfg.ClientCAFile}
	}
	if k := s.files.kubelets; k != nil && noneOf(config.Data[auth.KubeletCAKey], k) {
		return &ForeignError{s.cfg.KubeletCAFile}
	}
	return atomicfile.Write(s.cfg.ClusterFile, []byte(cluster.UID+"\n"), 0o600)
}

// noneOf reports whether text has certificates, and none is of an authority in own. An authority is
// its name and its key: its certificate may be made anew. What cannot be read is no certificate.
func noneOf(text string, own *auth.Authorities) bool {
	certs, _ := certutil.ParseCertsPEM([]byte(text))
	return len(certs) > 0 && !slices.ContainsFunc(certs, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(own.Certificates(), func(o *x509.Certificate) bool {
			return bytes.Equal(o.RawSubject, c.RawSubject) && bytes.Equal(o.RawSubjectPublicKeyInfo, c.RawSubjectPublicKeyInfo)
		})
	})
}
