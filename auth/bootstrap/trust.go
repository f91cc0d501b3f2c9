// This file has the authorities that a node trusts, and follows their changes.

package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth"
)

// ConfigMaps in namespace kube-system with the authorities of the API server and of its
// clients.
const (
	rootsName, rootsKey     = "kube-root-ca.crt", "ca.crt"
	clientsName, clientsKey = "extension-apiserver-authentication", "client-ca-file"
	// kubeletsKey is ours, in the ConfigMap of clients.
	kubeletsKey = auth.KubeletCAKey
)

const (
	// DefaultFollow is how often a node reads the authorities, unless configured otherwise.
	DefaultFollow = time.Hour
	// maxFormer bounds the former authorities of the server that are kept.
	maxFormer = 8
)

// ConfigMaps are those of namespace kube-system. The typed client is one.
type ConfigMaps interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.ConfigMap, error)
}

// trust is the set of authorities that a node trusts. It does not change.
type trust struct {
	roots, clients       []*x509.Certificate
	rootPool, clientPool *x509.CertPool
	former               []*x509.Certificate // former roots, no longer trusted
	published            bool                // whether clients were read from the cluster
	kubelets             []*x509.Certificate // those of serving certificates; none if the cluster does not publish them
	asked                bool                // whether the cluster was read since the start
}

// newTrust trusts roots for servers and clients for clients. No clients means that they
// have not been read yet, and no client is trusted.
func newTrust(roots, clients, former []*x509.Certificate) *trust {
	return &trust{
		roots: roots, clients: clients, rootPool: poolOf(roots), clientPool: poolOf(clients),
		former: former, published: len(clients) > 0,
	}
}

func poolOf(list []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range list {
		pool.AddCert(c)
	}
	return pool
}

// loadTrust reads the authorities in the data directory.
func (c *Config) loadTrust() (*trust, error) {
	roots, err := readCerts(c.path(caFile))
	if err != nil {
		return nil, err
	}
	var others [2][]*x509.Certificate
	for i, name := range []string{clientsFile, formerFile} {
		others[i], err = readCerts(c.path(name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			// The file is only a copy.
			c.Log.Warn("an authority kept is of no use, asking the server again", "file", name, "err", err)
		}
	}
	return newTrust(roots, others[0], others[1]), nil
}

// known reports whether one of pins is that of the cluster's authority or of a former
// one: the command line may still have the hash by which the node joined.
func (t *trust) known(pins []Pin) bool {
	return slices.ContainsFunc(slices.Concat(t.roots, t.former), func(c *x509.Certificate) bool { return pinsMatch(pins, c) })
}

// keepRoot stores the authority by which the node has joined. It removes stored
// authorities of another cluster. While the cluster's authority is replaced it has two, and
// root may be either.
func (c *Config) keepRoot(root *x509.Certificate) error {
	pin := []Pin{PinOf(root)} // it may be the same key, certified by another
	if have, err := readCerts(c.path(caFile)); err == nil && slices.ContainsFunc(have, func(ca *x509.Certificate) bool { return pinsMatch(pin, ca) }) {
		return nil
	}
	for _, name := range []string{clientsFile, formerFile, servingFile, nameFile, tunnelFile} {
		if err := remove(c.path(name)); err != nil {
			return err
		}
	}
	return writeFile(c.path(caFile), encodeCerts(root), 0o644)
}

// followTrust follows the authorities until ctx is done.
func (r *Rotation) followTrust(ctx context.Context) {
	if r.cfg.ConfigMaps == nil {
		return
	}
	var wait time.Duration
	last, told := "", false
	for {
		next := r.cfg.Follow*3/4 + rand.N(r.cfg.Follow/2)
		if err := r.refresh(ctx); err != nil && ctx.Err() == nil {
			wait = min(max(2*wait, renewFirst), renewLimit)
			next = max(wait/2+rand.N(wait), retryAfterIn(err))
			switch msg := err.Error(); {
			case !r.unknown(err):
				if msg != last {
					last = msg
					r.cfg.Log.Warn("cannot learn or keep the cluster's authorities yet, will keep trying", "node", r.cfg.Identity.NodeName(), "err", err)
				}
			case !told:
				told = true
				r.cfg.Log.Info("the cluster's authorities are not followed while the API does not know this node's certificate, as is normal beside a server with --agent-ca",
					"node", r.cfg.Identity.NodeName(), "err", err)
			}
		} else {
			wait, last = 0, ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// unknown reports whether err means that the API does not know a certificate that the node was given,
// and never did: it may know other ones than the server of the tunnel does.
func (r *Rotation) unknown(err error) bool {
	id := r.cfg.Identity
	return id.given != nil && !id.trust.Load().asked && apierrors.IsUnauthorized(err)
}

// refresh reads the authorities from the server once.
func (r *Rotation) refresh(ctx context.Context) error {
	roots, _, rootsErr := r.published(ctx, rootsName, rootsKey)
	clients, kubelets, clientsErr := r.published(ctx, clientsName, clientsKey)
	missing := errors.Join(rootsErr, clientsErr)
	for _, err := range []error{rootsErr, clientsErr} {
		if err != nil && !apierrors.IsNotFound(err) {
			return missing
		}
	}
	changed, err := r.cfg.Identity.adopt(roots, clients, kubelets)
	if errors.Is(err, errUnproven) {
		// The server's last certificate may be an old one: reconnect to get the present one.
		r.reconnect()
		if roots, _, rootsErr = r.published(ctx, rootsName, rootsKey); rootsErr != nil {
			return errors.Join(err, rootsErr)
		}
		changed, err = r.cfg.Identity.adopt(roots, clients, kubelets)
	}
	if changed {
		r.reconnect()
	}
	return errors.Join(err, missing) // a cluster that is just starting publishes them soon
}

func (r *Rotation) reconnect() {
	if r.cfg.TrustChanged != nil {
		r.cfg.TrustChanged()
	}
}

// published reads authorities, and those of kubelets in the same ConfigMap, if any. If
// nodes may not read them there are none, and only the authority by which the node has
// joined is used.
func (r *Rotation) published(ctx context.Context, name, key string) (list, kubelets []*x509.Certificate, err error) {
	m, err := r.cfg.ConfigMaps.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("get ConfigMap %s: %w", name, err)
	}
	if list, err = auth.ParseCertificates([]byte(m.Data[key])); err != nil {
		return nil, nil, fmt.Errorf("ConfigMap %s, key %s: %w", name, key, err)
	}
	if text, ok := m.Data[kubeletsKey]; ok {
		if kubelets, err = auth.ParseCertificates([]byte(text)); err != nil {
			return nil, nil, fmt.Errorf("ConfigMap %s, key %s: %w", name, kubeletsKey, err)
		}
	}
	return list, kubelets, nil
}

var errUnproven = errors.New("the cluster publishes other authorities of its server, which are not believed")

// adopt trusts and stores other authorities; an empty list keeps the present ones. If the
// cluster has never published those of clients, the server's are used. New authorities of
// the server must verify the certificate that the server showed last: else the node could
// not connect again. adopt reports whether those of the server have changed. They are
// trusted though they cannot be written: the next call tries that again.
func (i *Identity) adopt(roots, clients, kubelets []*x509.Certificate) (changed bool, err error) {
	i.trusting.Lock()
	defer i.trusting.Unlock()
	now := i.trust.Load()
	if i.given != nil {
		roots = nil // the error names the file
	}
	if len(clients) == 0 && now.published {
		clients = now.clients
	}
	next := newTrust(now.roots, clients, now.former)
	if len(roots) > 0 && !same(roots, now.roots) {
		if err = i.proven(roots); err != nil {
			return false, fmt.Errorf("%w: %w", errUnproven, err)
		}
		changed = true
		former := slices.Concat(now.former, now.roots)
		next = newTrust(roots, clients, former[max(0, len(former)-maxFormer):])
		i.cfg.Log.Info("the cluster's authority is another", "node", i.NodeName(), "hash", PinOf(roots[0]))
	}
	if !next.published {
		next.clients, next.clientPool = next.roots, next.rootPool
	}
	next.kubelets, next.asked = kubelets, true
	i.trust.Store(next)
	if err = i.keepTrust(next); err != nil {
		err = fmt.Errorf("they are in use, and cannot be kept for the next start: %w", err)
	}
	return changed, err
}

// keepTrust writes what is not on disk yet. The caller holds trusting.
func (i *Identity) keepTrust(t *trust) error {
	disk := i.onDisk
	if disk == nil {
		disk = &trust{}
	}
	write := func(name string, list []*x509.Certificate) error {
		return writeFile(i.cfg.path(name), encodeCerts(list...), 0o644)
	}
	if i.given == nil && !same(t.roots, disk.roots) {
		// The former ones are written first: the hash on the command line may be theirs.
		if err := write(formerFile, t.former); err != nil {
			return err
		}
		if err := write(caFile, t.roots); err != nil {
			return err
		}
	}
	if t.published && (!disk.published || !same(t.clients, disk.clients)) {
		if err := write(clientsFile, t.clients); err != nil {
			return err
		}
	}
	i.onDisk = t
	return nil
}

func same(a, b []*x509.Certificate) bool { return slices.EqualFunc(a, b, (*x509.Certificate).Equal) }

// proven returns an error unless roots verify the certificate that the server showed last.
func (i *Identity) proven(roots []*x509.Certificate) error {
	shown := i.shown.Load()
	if shown == nil {
		return errors.New("no connection to the server yet by which to check them")
	}
	_, err := (*shown)[0].Verify(x509.VerifyOptions{
		Roots: poolOf(roots), Intermediates: poolOf((*shown)[1:]), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// see stores the server's certificates.
func (i *Identity) see(cs tls.ConnectionState) error {
	if err := auth.NotNode(cs.PeerCertificates); err != nil {
		return err
	}
	if shown := cs.PeerCertificates; len(shown) > 0 {
		i.shown.Store(&shown)
	}
	return nil
}
