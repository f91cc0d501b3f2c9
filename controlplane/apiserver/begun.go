// Who began the cluster: a server on a store that others have used must share an authority with them.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/hawser-project/hawser/auth"
)

// A ForeignError says that the cluster in the store was begun by servers with other authorities: no
// node, and no other server, believes what this one signs.
type ForeignError struct {
	File      string // of this server's authorities
	ConfigMap string // that has the cluster's, NAMESPACE/NAME
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s has none of the authorities that the cluster in the store has (ConfigMap %s): replace its directory by that of another of the cluster's servers, or of a backup (hawser help servers)",
		e.File, e.ConfigMap)
}

// shareAuthorities returns a ForeignError if this server has no authority in common with the cluster
// in a store that servers share. A cluster that has none yet is this server's. If the store does not
// say so within Config.ReadyBound, that is logged: as with kinds that cannot be listed, nobody could
// mend it without this server.
func (s *Server) shareAuthorities(ctx context.Context, client kubernetes.Interface) error {
	if len(s.cfg.EtcdServers.Servers) == 0 {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, s.cfg.ReadyBound)
	defer cancel()
	for {
		err := s.compareAuthorities(asking, client)
		if err == nil || errors.As(err, new(*ForeignError)) {
			return err
		}
		select {
		case <-time.After(builtinAgain):
		case <-asking.Done():
			s.cfg.Log.Warn("cannot tell whether the cluster in the store has this server's authorities", "err", err)
			return nil
		}
	}
}

func (s *Server) compareAuthorities(ctx context.Context, client kubernetes.Interface) error {
	for _, kept := range []struct {
		config, key string
		file        string
		own         *auth.Authorities
	}{
		{authenticationConfig, clientsKey, s.cfg.ClientCAFile, s.files.clients},
		{authenticationConfig, auth.KubeletCAKey, s.cfg.KubeletCAFile, s.files.kubelets},
		{rootsConfig, rootsKey, s.cfg.RootCAFile, s.files.roots},
	} {
		if kept.own == nil {
			continue
		}
		config, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, kept.config, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return err
		case noneOf(config.Data[kept.key], kept.own):
			return &ForeignError{File: kept.file, ConfigMap: metav1.NamespaceSystem + "/" + kept.config}
		}
	}
	return nil
}

// noneOf reports whether text has certificates, and none of own. What cannot be read is no
// certificate.
func noneOf(text string, own *auth.Authorities) bool {
	certs, _ := certutil.ParseCertsPEM([]byte(text))
	for _, c := range certs {
		if slices.ContainsFunc(own.Certificates(), c.Equal) {
			return false
		}
	}
	return len(certs) > 0
}
