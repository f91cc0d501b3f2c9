// hawser token list and delete: which join tokens there are.

package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

func newTokenList() *cobra.Command {
	var kubeconfig string
	list := &cobra.Command{
		Use: "list", Short: "List the tokens by their ids, the part before the dot, without their secrets",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(cmd.Context(), kubeconfig, func(ctx context.Context, client kubernetes.Interface, rc *rest.Config) error {
				return listTokens(ctx, cmd.OutOrStdout(), client, whoAmI(ctx, client, rc).now)
			})
		},
	}
	kubeconfigFlag(list, &kubeconfig)
	return list
}

func newTokenDelete() *cobra.Command {
	var kubeconfig string
	del := &cobra.Command{
		Use: "delete ID...", Short: "Delete tokens, so that no machine joins with them any more; those that have joined stay",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name the tokens to delete by their ids: hawser token list has them")
			}
			for _, arg := range args {
				if _, err := tokenID(arg); err != nil {
					return err
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return withClient(cmd.Context(), kubeconfig, func(ctx context.Context, client kubernetes.Interface, _ *rest.Config) error {
				return deleteTokens(ctx, cmd.OutOrStdout(), client, args)
			})
		},
	}
	kubeconfigFlag(del, &kubeconfig)
	del.ValidArgsFunction = completeNames(&kubeconfig, 0, tokenIDs)
	return del
}

func kubeconfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "kubeconfig", "", "kubeconfig of an administrator (default $KUBECONFIG, then ./.hawser/"+adminKubeconfig+")")
}

// withClient has f use the API as the kubeconfig says.
func withClient(ctx context.Context, kubeconfig string, f func(context.Context, kubernetes.Interface, *rest.Config) error) error {
	rc, err := loadKubeconfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return withRemedy(f(ctx, client, rc))
}

// withRemedy adds what may help to the error of a server that cannot be asked.
func withRemedy(err error) error {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var late net.Error
	remedy := ""
	switch {
	case apierrors.IsUnauthorized(err):
		remedy = "the certificate or token of the kubeconfig is not valid, or not any more: use another kubeconfig"
	case errors.As(err, &unknown):
		remedy = "the kubeconfig has the authority of another cluster, or another server answers there"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		remedy = "look at this machine's clock; if it is right, the server needs another certificate"
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = "is the server running, and does the kubeconfig name its port?"
	case errors.As(err, &late) && late.Timeout():
		remedy = "look at the server's log, at the load of its machine and at the network on the way"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, remedy)
}

// tokenID is the id of a token, which may be given whole. Its error has no secret.
func tokenID(arg string) (string, error) {
	id, _, _ := strings.Cut(arg, ".")
	if arg != id && !bootstraputil.IsValidBootstrapToken(arg) || arg == id && !bootstraputil.IsValidBootstrapTokenID(id) {
		return "", fmt.Errorf("token %q: want its id, six characters of a-z and 0-9, or all of it", id)
	}
	return id, nil
}

func listTokens(ctx context.Context, out io.Writer, client kubernetes.Interface, now time.Time) error {
	all, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return fmt.Errorf("list the tokens: %w", err)
	}
	slices.SortFunc(all.Items, func(a, b corev1.Secret) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "ID\tAGE\tEXPIRES IN\tSITE\tGROUPS")
	for i := range all.Items {
		s := &all.Items[i]
		groups, site := tokenGroups(string(s.Data[bootstrapapi.BootstrapTokenExtraGroupsKey]))
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", strings.TrimPrefix(s.Name, bootstrapapi.BootstrapTokenSecretPrefix),
			duration.HumanDuration(now.Sub(s.CreationTimestamp.Time)), tokenEnd(s, now), cmp.Or(site, "-"), cmp.Or(groups, "-"))
	}
	return w.Flush()
}

// tokenGroups takes the site out of the groups of a token. Whoever may make a token may
// write anything there.
func tokenGroups(all string) (groups, site string) {
	var rest []string
	for g := range strings.SplitSeq(setup.Printable(all), ",") {
		if s, is := strings.CutPrefix(g, auth.SiteGroup); is {
			site = s
		} else if g != "" {
			rest = append(rest, g)
		}
	}
	return strings.Join(rest, ","), site
}

// tokenEnd says when a token ends.
func tokenEnd(s *corev1.Secret, now time.Time) string {
	text := string(s.Data[bootstrapapi.BootstrapTokenExpirationKey])
	if text == "" {
		return "never"
	}
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return "broken" // nobody joins with it
	case !at.After(now):
		return "expired"
	}
	return duration.HumanDuration(at.Sub(now))
}

func deleteTokens(ctx context.Context, out io.Writer, client kubernetes.Interface, args []string) error {
	for _, arg := range args {
		id, err := tokenID(arg)
		if err != nil {
			return err
		}
		err = client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, bootstrapapi.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no token %s: hawser token list has those that there are", id)
		}
		if err != nil {
			return fmt.Errorf("delete token %s: %w", id, err)
		}
		if _, err := fmt.Fprintf(out, "token %s is deleted\n", id); err != nil {
			return err
		}
	}
	return nil
}
