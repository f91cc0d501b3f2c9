// Virtualkubelet is a node by virtual-kubelet's library, for tests: its pods are processes of
// this machine, and its kubelet API listens on loopback. It has the identity of its
// kubeconfig, which is the node's, and asks the API server for its serving certificate. A node
// may not list Secrets and ConfigMaps, so that pods which refer to one do not run here.
//
//	virtualkubelet --node-name NAME --kubeconfig FILE --listen 127.0.0.1:PORT --client-ca FILE --dir DIR
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate/csr"
)

type options struct{ name, kubeconfig, listen, clientCA, dir string }

func main() {
	var o options
	flag.StringVar(&o.name, "node-name", "", "name of the node")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "file of a kubeconfig with the node's identity")
	flag.StringVar(&o.listen, "listen", "", "address of the kubelet API")
	flag.StringVar(&o.clientCA, "client-ca", "", "file with the authority of those who use it")
	flag.StringVar(&o.dir, "dir", "", "directory of the logs of containers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	conf, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(conf)
	if err != nil {
		return err
	}
	serving, err := servingPair(ctx, client, o.name)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	auth, err := nodeutil.WebhookAuth(client, o.name, func(c *nodeutil.WebhookAuthConfig) (err error) {
		c.AuthnConfig.ClientCertificateCAContentProvider, err = dynamiccertificates.NewDynamicCAContentFromFile("clients", o.clientCA)
		return err
	})
	if err != nil {
		return err
	}
	pods := newProvider(o.dir)
	defer pods.endAll()
	mux := http.NewServeMux()
	n, err := nodeutil.NewNode(o.name, func(nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
		return pods, nil, nil
	}, nodeutil.WithClient(client), nodeutil.AttachProviderRoutes(mux), nodeutil.WithTLSConfig(func(c *tls.Config) error {
		c.Certificates = []tls.Certificate{*serving}
		return nil
	}), func(c *nodeutil.NodeConfig) error {
		c.HTTPListenAddr, c.Handler, c.NodeSpec = o.listen, nodeutil.WithAuth(auth, mux), nodeOf(o.name)
		return nil
	})
	if err != nil {
		return err
	}
	return n.Run(ctx)
}

// nodeOf is what is registered. The library makes it Ready.
func nodeOf(name string) corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10"),
	}
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "type": "virtual-kubelet"}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		},
	}
}

// servingPair asks for a certificate that names the node, as a kubelet with
// serverTLSBootstrap does.
func servingPair(ctx context.Context, client kubernetes.Interface, name string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}, DNSNames: []string{name},
	}, key)
	if err != nil {
		return nil, err
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	asked, uid, err := csr.RequestCertificateWithContext(ctx, client, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}), "",
		certificatesv1.KubeletServingSignerName, nil, usages, key)
	if err != nil {
		return nil, err
	}
	chain, err := csr.WaitForCertificate(ctx, client, asked, uid)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	return &pair, err
}
