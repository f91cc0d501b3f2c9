// hawser token: join tokens, which are bootstrap-token Secrets of the cluster.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

const (
	apiTimeout = 30 * time.Second
	// signTimeout is how long kube-controller-manager may take to sign what the cluster
	// publishes with a new token, and signLook how often that is looked at.
	signTimeout, signLook = 10 * time.Second, 200 * time.Millisecond
)

func newToken() *cobra.Command {
	token := &cobra.Command{
		Use: "token", SuggestFor: []string{"join"}, Short: "Join tokens for nodes",
		// Without these two a subcommand that does not exist would print the help
		// and succeed.
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var (
		ttl        time.Duration
		printJoin  bool
		kubeconfig string
		server     string
		site       string
	)
	create := &cobra.Command{
		Use:   "create",
		Short: "Make a token with which nodes may join until it expires",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < 0 {
				return fmt.Errorf("--ttl %s is negative: give how long the token shall be valid, or 0 for ever", ttl)
			}
			if err := checkSite(site); err != nil {
				return err
			}
			if err := checkJoinServer(server, printJoin); err != nil {
				return err
			}
			return withClient(cmd.Context(), kubeconfig, func(ctx context.Context, client kubernetes.Interface, rc *rest.Config) error {
				return createToken(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), client, rc, ttl, site, printJoin, server)
			})
		},
	}
	f := create.Flags()
	f.DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is valid; 0 means for ever")
	f.StringVar(&site, "site", "", "the site of the nodes that join with the token: they get the label "+auth.SiteLabel+", which nodes cannot write")
	f.BoolVar(&printJoin, "print-join-command", false, "print a complete hawser-agent command line instead of the token")
	kubeconfigFlag(create, &kubeconfig)
	f.StringVar(&server, "server", "", "with --print-join-command: the URLs at which nodes reach the servers, separated by commas (default what the servers advertise, or the Leases of hubs beside another API server)")
	token.AddCommand(create, newTokenList(), newTokenDelete())
	return token
}

// createToken prints a new token, or the command to join with it. What a person should know of it goes
// to notes.
func createToken(ctx context.Context, out, notes io.Writer, client kubernetes.Interface, rc *rest.Config, ttl time.Duration, site string, printJoin bool, server string) error {
	if printJoin && server == "" {
		servers, err := joinServers(ctx, client, notes, rc.Host)
		if err != nil {
			return err
		}
		server = strings.Join(servers, ",")
	}
	token, err := makeToken(ctx, client, whoAmI(ctx, client, rc).now, ttl, site)
	if err != nil {
		return err
	}
	awaitSigned(ctx, client, token[:6])
	if !printJoin {
		_, err = fmt.Fprintln(out, token)
		return err
	}
	pins, err := caPins(rc)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "hawser-agent --server %s --token %s --discovery-token-ca-cert-hash %s\n", server, token, pins)
	return err
}

// checkJoinServer refuses what no agent takes as --server. Several are separated by commas.
func checkJoinServer(servers string, printJoin bool) error {
	switch {
	case servers == "":
		return nil
	case !printJoin:
		return errors.New("--server is for --print-join-command: a token alone names no server")
	}
	for server := range strings.SplitSeq(servers, ",") {
		if _, err := setup.ServerAddress(server); err != nil {
			return fmt.Errorf("--server %w", err)
		}
	}
	return nil
}

// checkSite refuses what a bootstrap token cannot say of a site.
func checkSite(site string) error {
	bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	if strings.ContainsFunc(site, bad) || strings.HasPrefix(site, "-") || strings.HasSuffix(site, "-") || len(site) > content.LabelValueMaxLength {
		return fmt.Errorf("--site %q: want at most %d characters of a-z, 0-9 and \"-\", which begin and end with a letter or digit", site, content.LabelValueMaxLength)
	}
	return nil
}

// makeToken stores a new bootstrap token and returns it as ID.SECRET. It is valid for ttl from now, or
// for ever if that is 0. Nodes that join with it are of a site if that is not empty.
func makeToken(ctx context.Context, client kubernetes.Interface, now time.Time, ttl time.Duration, site string) (string, error) {
	token, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return "", err
	}
	id, secret := token[:6], token[7:]
	data := map[string][]byte{
		bootstrapapi.BootstrapTokenIDKey:               []byte(id),
		bootstrapapi.BootstrapTokenSecretKey:           []byte(secret),
		bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
		bootstrapapi.BootstrapTokenUsageSigningKey:     []byte("true"),
		bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(kubeauth.JoinGroup),
	}
	if site != "" {
		data[bootstrapapi.BootstrapTokenExtraGroupsKey] = []byte(kubeauth.JoinGroup + "," + auth.SiteGroup + site)
	}
	if ttl > 0 {
		data[bootstrapapi.BootstrapTokenExpirationKey] = []byte(now.Add(ttl).UTC().Format(time.RFC3339))
	}
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.BootstrapTokenSecretPrefix + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		Data:       data,
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("store the token: %w", err)
	}
	return token, nil
}

// awaitSigned waits until what the cluster publishes for joining nodes is signed with a
// token, as agents that see no CA need it. It returns at once where nothing is published, and
// after signTimeout where nobody signs: an agent says what it lacks.
func awaitSigned(ctx context.Context, client kubernetes.Interface, id string) {
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	for {
		info, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
		if err != nil || info.Data[bootstrapapi.JWSSignatureKeyPrefix+id] != "" || sleep(ctx, signLook) != nil {
			return
		}
	}
}

// caPins are what the agent's --discovery-token-ca-cert-hash expects: one for each
// authority that counts, since the server may show any of them.
func caPins(rc *rest.Config) (string, error) {
	if err := rest.LoadTLSFiles(rc); err != nil {
		return "", err
	}
	pins, err := bootstrap.PinsOf(rc.CAData)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(pins))
	for i, pin := range pins {
		texts[i] = pin.String()
	}
	return strings.Join(texts, ","), nil
}

// loadKubeconfig reads file, or what the environment or the working directory
// offers when file is empty.
func loadKubeconfig(file string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if file == "" {
		file = kubeconfigDefault()
	}
	rules.ExplicitPath = file
	rc, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		if env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); file == "" && env != "" && clientcmd.IsEmptyConfig(err) {
			return nil, errors.New(noClusterIn(env))
		}
		if clientcmd.IsEmptyConfig(err) {
			return nil, errors.New("no kubeconfig: give --kubeconfig FILE or set KUBECONFIG, for example to .hawser/" + adminKubeconfig)
		}
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return rc, nil
}

// noClusterIn is what is wrong with the KUBECONFIG of the environment if no cluster is found by it.
func noClusterIn(env string) string {
	return "KUBECONFIG " + env + ": there is no cluster or no current-context in it, or no such file: set it to an existing kubeconfig, or give --kubeconfig FILE"
}
