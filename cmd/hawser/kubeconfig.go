// hawser kubeconfig: a client certificate for a person, in a kubeconfig.

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

const (
	// personFor is how long a person's certificate lasts if nothing is said.
	personFor = 24 * time.Hour
	// minPersonFor is the least that can be asked for, as the API has it.
	minPersonFor = 10 * time.Minute
)

func newKubeconfig() *cobra.Command {
	var (
		kubeconfig, user, server string
		groups                   []string
		lasts                    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "kubeconfig --user NAME [--group GROUP]...",
		Short: "Make a kubeconfig with a client certificate for a person",
		Long: "Makes a key, has the cluster sign a client certificate for it that names the user and the groups, and prints a\n" +
			"kubeconfig with both. What the user may do is what is bound to the name and the groups, for example by\n\n" +
			"  kubectl create clusterrolebinding NAME-views --clusterrole view --user NAME\n\n" +
			"The kubeconfig names the server as --kubeconfig does. Where that names this machine only, as the administrator's on\n" +
			"a server does, it names the address that the server advertises. --server names another.\n\n" +
			"A certificate cannot be taken back before it expires: take away what is bound to it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPerson(user, groups, lasts); err != nil {
				return err
			}
			if server != "" {
				if _, err := setup.ServerAddress(server); err != nil {
					return fmt.Errorf("--server %w", err)
				}
			}
			return withClient(cmd.Context(), kubeconfig, func(ctx context.Context, client kubernetes.Interface, rc *rest.Config) error {
				return person(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), client, rc, server, user, groups, lasts)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&user, "user", "", "the user's name; required")
	f.StringSliceVar(&groups, "group", nil, "a group of the user; may be repeated")
	f.DurationVar(&lasts, "for", personFor, "how long the certificate is valid; the server's --cluster-signing-duration is the most")
	f.StringVar(&server, "server", "", "the URL at which the user reaches the server, such as a load balancer's (default see above)")
	kubeconfigFlag(cmd, &kubeconfig)
	return cmd
}

// checkPerson refuses what no certificate for a person may say, naming the flag.
func checkPerson(user string, groups []string, lasts time.Duration) error {
	switch {
	case user == "":
		return errors.New("--user is required: give the name by which roles are bound to the user")
	case strings.HasPrefix(user, "system:"):
		return fmt.Errorf("--user %q: names that begin with system: belong to parts of the cluster", user)
	case slices.Contains(groups, ""):
		return errors.New("--group is empty: give a name")
	case lasts < minPersonFor:
		return fmt.Errorf("--for %s: want %s at least", lasts, minPersonFor)
	}
	for _, g := range groups {
		if strings.HasPrefix(g, "system:") && g != "system:monitoring" {
			return fmt.Errorf("--group %q: of the groups that begin with system:, a person may be in system:monitoring only; for an administrator, bind the role cluster-admin to the user", g)
		}
	}
	return nil
}

// person prints a kubeconfig for the user to out, and when it expires to said.
func person(ctx context.Context, out, said io.Writer, client kubernetes.Interface, rc *rest.Config, server, user string, groups []string, lasts time.Duration) (err error) {
	if server == "" {
		if server, err = elsewhere(ctx, client, rc); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	cert, err := signed(ctx, client, key, pkix.Name{CommonName: user, Organization: groups}, lasts)
	if err != nil {
		return fmt.Errorf("certificate for %s: %w", user, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key: %w", err)
	}
	if err = rest.LoadTLSFiles(rc); err != nil {
		return err
	}
	const cluster = "hawser"
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{cluster: {Server: server, TLSServerName: rc.ServerName, CertificateAuthorityData: rc.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{user: {
			ClientCertificateData: cert, ClientKeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		}},
		Contexts:       map[string]*clientcmdapi.Context{cluster: {Cluster: cluster, AuthInfo: user}},
		CurrentContext: cluster,
	})
	if err != nil {
		return fmt.Errorf("encode the kubeconfig: %w", err)
	}
	if _, err = out.Write(text); err != nil {
		return err
	}
	certs, err := auth.ParseCertificates(cert)
	if err != nil {
		return fmt.Errorf("certificate for %s: %w", user, err)
	}
	_, err = fmt.Fprintf(said, "the certificate of %s expires at %s\n", user, certs[0].NotAfter.Format(time.RFC3339))
	return err
}

// elsewhere is a server's URL for people at other machines: what the server advertises where
// ours is for this machine only.
func elsewhere(ctx context.Context, client kubernetes.Interface, rc *rest.Config) (string, error) {
	u, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: server: %w", err)
	}
	if u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback() {
		return rc.Host, nil
	}
	urls, err := advertised(ctx, client, rc.Host)
	if err != nil {
		return "", err
	}
	return urls[0], nil
}

// signed has the cluster sign a certificate for key. The request is deleted afterwards.
func signed(ctx context.Context, client kubernetes.Interface, key *ecdsa.PrivateKey, subject pkix.Name, lasts time.Duration) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	r, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kubeconfig-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:           pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName:        certificatesv1.KubeAPIServerClientSignerName,
			ExpirationSeconds: ptr.To(int32(min(lasts, personMost) / time.Second)),
			Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	// The cleaner takes what a broken connection leaves behind.
	defer func() { _ = requests.Delete(context.WithoutCancel(ctx), r.Name, metav1.DeleteOptions{}) }()
	w, err := requests.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, r.Name).String(), ResourceVersion: r.ResourceVersion,
	})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Kubeconfig", Message: "made by hawser kubeconfig",
	})
	if _, err = requests.UpdateApproval(ctx, r.Name, r, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return issued(w)
}

// personMost is the most that a request can ask for.
const personMost = time.Duration(1<<31-1) * time.Second

// issued waits for the certificate of the one request that w is about.
func issued(w watch.Interface) ([]byte, error) {
	for e := range w.ResultChan() {
		r, ok := e.Object.(*certificatesv1.CertificateSigningRequest)
		switch {
		case !ok || e.Type == watch.Deleted:
			return nil, fmt.Errorf("the request has gone: %v", e.Type)
		case len(r.Status.Certificate) > 0:
			return r.Status.Certificate, nil
		}
		for _, c := range r.Status.Conditions {
			if c.Type != certificatesv1.CertificateApproved {
				return nil, fmt.Errorf("%s: %s", c.Reason, c.Message)
			}
		}
	}
	return nil, errors.New("the request is not signed: is the controller certificatesigningrequest-signing-controller running?")
}
