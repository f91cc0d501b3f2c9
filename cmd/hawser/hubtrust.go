// Whom a hub beside another API server believes, and how agents come to believe it.

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth"
)

const (
	// clientsNamespace, clientsName and clientsKey are where a cluster says by which
	// authorities it knows client certificates.
	clientsNamespace, clientsName, clientsKey = "kube-system", "extension-apiserver-authentication", "client-ca-file"
	clientsConfigMap                          = clientsNamespace + "/" + clientsName

	// hubNamespace, hubName and hubKey are where agents find the authorities of hubs.
	hubNamespace, hubName, hubKey = "kube-public", "hawser-tunnel", "ca.crt"
	hubConfigMap                  = hubNamespace + "/" + hubName
	// maxHubs bounds the authorities there: hubs, and those of before.
	maxHubs = 32
	// publishAgain is how often it is looked whether it is still there, and the pause
	// after a failure.
	publishEvery, publishAgain = 10 * time.Minute, 5 * time.Second
)

// clusterClients are the authorities of the cluster's client certificates, which are
// followed.
type clusterClients struct {
	*dynamiccertificates.ConfigMapCAController
	known chan struct{} // closed once they are
	once  sync.Once
}

func newClusterClients(api kubernetes.Interface) (*clusterClients, error) {
	followed, err := dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca", clientsNamespace, clientsName, clientsKey, api)
	if err != nil {
		return nil, fmt.Errorf("authorities of client certificates: %w", err)
	}
	c := &clusterClients{ConfigMapCAController: followed, known: make(chan struct{})}
	c.AddListener(c)
	return c, nil
}

// Enqueue implements dynamiccertificates.Listener: they have changed.
func (c *clusterClients) Enqueue() { c.once.Do(func() { close(c.known) }) }

// Pool is the authorities now.
func (c *clusterClients) Pool() (*x509.CertPool, error) {
	o, ok := c.VerifyOptions()
	if !ok {
		return nil, errors.New("the cluster has not said yet by which authorities it knows clients (ConfigMap " + clientsConfigMap + ")")
	}
	return o.Roots, nil
}

// knowsAgents is closed once there are authorities to know agents by: those of a file are
// there from the start.
func (h *hubBeside) knowsAgents() <-chan struct{} {
	if h.o.beside.clientCA == "" && h.o.beside.agentCA == "" {
		return h.clients.known
	}
	known := make(chan struct{})
	close(known)
	return known
}

func (c *clusterClients) run(ctx context.Context) error {
	c.Run(ctx, 1)
	return nil
}

// filePool is Pool of a file that is followed.
func filePool(a *auth.Authorities) func() (*x509.CertPool, error) {
	return func() (*x509.CertPool, error) { return a.Pool(), nil }
}

// A publisher keeps the hub's authority where agents look for it. Those of other hubs stay.
type publisher struct {
	api  kubernetes.Interface
	own  *auth.Authorities
	log  *slog.Logger
	poke chan struct{}
}

func newPublisher(api kubernetes.Interface, own *auth.Authorities, log *slog.Logger) *publisher {
	return &publisher{api, own, log, make(chan struct{}, 1)}
}

// run publishes until ctx is done.
func (p *publisher) run(ctx context.Context) error {
	defer p.own.Changed(func() {
		select {
		case p.poke <- struct{}{}:
		default:
		}
	})()
	last := ""
	for {
		pause := publishEvery
		if err := p.publish(ctx); err != nil && ctx.Err() == nil {
			pause = publishAgain
			if text := err.Error(); text != last {
				last = text
				p.log.Warn("agents cannot learn the hub's authority yet, will try again", "configmap", hubConfigMap, "err", err)
			}
		} else {
			last = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.poke:
		case <-time.After(pause):
		}
	}
}

// publish writes the authorities if they are not there.
func (p *publisher) publish(ctx context.Context) error {
	maps := p.api.CoreV1().ConfigMaps(hubNamespace)
	m, err := maps.Get(ctx, hubName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: hubName}}
		if m.Data, err = withAuthorities(nil, p.own.Certificates(), time.Now()); err == nil {
			_, err = maps.Create(ctx, m, metav1.CreateOptions{})
		}
		return err
	}
	if err != nil {
		return err
	}
	next, err := withAuthorities(m.Data, p.own.Certificates(), time.Now())
	if err != nil || next[hubKey] == m.Data[hubKey] {
		return err
	}
	m.Data = next
	_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	return err
}

// withAuthorities is data with own among the certificates of it that have not expired.
func withAuthorities(data map[string]string, own []*x509.Certificate, now time.Time) (map[string]string, error) {
	all := own
	if had, err := auth.ParseCertificates([]byte(data[hubKey])); err == nil {
		all = had
		for _, c := range own {
			if !slices.ContainsFunc(had, c.Equal) {
				all = append(all, c)
			}
		}
	}
	var text bytes.Buffer
	n := 0
	for _, c := range all {
		if now.After(c.NotAfter) {
			continue
		}
		n++
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}); err != nil {
			return nil, err
		}
	}
	if n > maxHubs {
		return nil, fmt.Errorf("there are %d authorities: remove those of hubs that are no more from key %s", n, hubKey)
	}
	next := map[string]string{hubKey: text.String()}
	for k, v := range data {
		if k != hubKey {
			next[k] = v
		}
	}
	return next, nil
}
