// hawser node: who may be a node, as an administrator says.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

const (
	// allowedFor is how long another machine may take a name that is allowed.
	allowedFor = time.Hour
	// maxAllowed bounds what may be asked for.
	maxAllowed = 7 * 24 * time.Hour
)

func newNode() *cobra.Command {
	node := &cobra.Command{
		Use: "node", Short: "Which machine may be a node: take a node's identity away, or let another machine have its name",
		Args: cobra.NoArgs, // see newToken
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var kubeconfig, reason string
	var allowed time.Duration
	revoke := &cobra.Command{
		Use:   "revoke NAME",
		Short: "End a node's sessions and its access to the API, until another machine is allowed to take its name",
		Long: "Ends the node's sessions and its access to the API within seconds. No certificate that was issued under its name\n" +
			"is admitted any more, and none is issued, also after a restart of the server. Its Node object stays. Its\n" +
			"agent, once told, stops its pods (not with --transport ssh, nor those of another kubelet); in the API they are\n" +
			"evicted like those of any node that is silent. A join token that the machine knows is good for other names until\n" +
			"it expires: hawser token delete ends it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onIdentity(cmd.Context(), kubeconfig, args[0], func(ctx context.Context, b *nodekeys.Book, who caller) error {
				return revokeNode(ctx, cmd.OutOrStdout(), b, args[0], who.name, reason)
			})
		},
	}
	revoke.Flags().StringVar(&reason, "reason", "", "why, in one line; the node is told")
	allow := &cobra.Command{
		Use:   "allow NAME",
		Short: "Let the next machine that joins under a node's name take it",
		Long: "Lets the next machine that asks for a certificate with a join token take the name of a node. From that moment on\n" +
			"the machine that had it is not admitted any more; until then nothing changes.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if allowed <= 0 || allowed > maxAllowed {
				return fmt.Errorf("--for %s: want more than zero, and %s at most", allowed, maxAllowed)
			}
			return onIdentity(cmd.Context(), kubeconfig, args[0], func(ctx context.Context, b *nodekeys.Book, who caller) error {
				return allowNode(ctx, cmd.OutOrStdout(), b, args[0], who, allowed)
			})
		},
	}
	allow.Flags().DurationVar(&allowed, "for", allowedFor, "how long")
	for _, c := range []*cobra.Command{revoke, allow} {
		kubeconfigFlag(c, &kubeconfig)
		c.ValidArgsFunction = completeNames(&kubeconfig, 1, nodeNames)
		node.AddCommand(c)
	}
	return node
}

// onIdentity has f change the identity of a node, as whoever the kubeconfig is for.
func onIdentity(ctx context.Context, kubeconfig, name string, f func(context.Context, *nodekeys.Book, caller) error) error {
	if err := auth.CheckNodeName(name); err != nil {
		return err
	}
	return withClient(ctx, kubeconfig, func(ctx context.Context, client kubernetes.Interface, rc *rest.Config) error {
		return f(ctx, nodekeys.NewBook(client), whoAmI(ctx, client, rc))
	})
}

// A caller is who runs a command, and when.
type caller struct {
	name string
	now  time.Time // by the API server's clock
}

// whoAmI is the user of a client, or else what the kubeconfig says. An API server that does
// not say what time it is is taken to have this machine's.
func whoAmI(ctx context.Context, client kubernetes.Interface, rc *rest.Config) caller {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return caller{rc.Username, time.Now()}
	}
	who := caller{review.Status.UserInfo.Username, review.CreationTimestamp.Time}
	if who.now.IsZero() {
		who.now = time.Now()
	}
	return who
}

func revokeNode(ctx context.Context, out io.Writer, b *nodekeys.Book, name, by, reason string) error {
	v, err := b.Revoke(ctx, name, by, reason)
	if errors.Is(err, nodekeys.ErrUnknown) {
		return fmt.Errorf("node %q has no identity that could be revoked: no machine has got a certificate under this name, or its Node has been deleted since", name)
	}
	if err != nil {
		return plainly(err)
	}
	_, err = fmt.Fprintf(out, "node %s is revoked (since %s): its sessions and its access to the API end now; \"hawser node allow %s\" lets a machine join under this name again\n",
		name, v.At.UTC().Format(time.RFC3339), name)
	return err
}

func allowNode(ctx context.Context, out io.Writer, b *nodekeys.Book, name string, who caller, d time.Duration) error {
	err := b.Allow(ctx, name, who.name, who.now.Add(d))
	if errors.Is(err, nodekeys.ErrUnknown) {
		_, err = fmt.Fprintf(out, "the name %s is free: any machine with a join token may take it\n", name)
		return err
	}
	if err != nil {
		return plainly(err)
	}
	_, err = fmt.Fprintf(out, "the next machine that joins as %s within %s takes the name; give it a join token: hawser token create --print-join-command\n", name, d)
	return err
}

// plainly leaves off what only says where an error came by.
func plainly(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("this takes an administrator's kubeconfig: %w", err)
	}
	return err
}
